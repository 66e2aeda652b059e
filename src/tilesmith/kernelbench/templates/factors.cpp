// Rows times factors.
const char* multiply_rows(const void* x, void* y, long long rows, long long columns, const void* factors, float factor,
                          void* stream);

// Rows of a contiguous tensor, each times its factor, or all times one number.
struct RowsTimes : torch::autograd::Function<RowsTimes> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x,
                        const std::optional<Tensor>& factors, double number) {
    context->save_for_backward({x, factors.value_or(Tensor())});
    context->saved_data["number"] = number;
    const Tensor y = at::empty_like(x);
    if (x.numel() > 0) {
      const c10::DeviceGuard guard(x.device());
      const int64_t columns = x.dim() > 0 ? x.size(-1) : 1;
      const void* by = factors ? factors->data_ptr() : nullptr;
      check(multiply_rows(x.data_ptr(), y.data_ptr(), x.numel() / columns, columns, by, static_cast<float>(number),
                          current_stream(x)));
    }
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &x = saved[0], &gradient = gradients[0];
    const auto factors = saved[1].defined() ? std::optional<Tensor>(saved[1]) : std::nullopt;
    Tensor of_x, of_factors;
    if (context->needs_input_grad(0))
      of_x = RowsTimes::apply(gradient.contiguous(), factors, context->saved_data["number"].toDouble());
    if (factors && context->needs_input_grad(1))
      of_factors = (gradient * x).sum(-1, /*keepdim=*/true).view_as(*factors);
    return {of_x, of_factors, Tensor()};
  }
};

Tensor scaled(const Tensor& x, double number) {
  return as_given(RowsTimes::apply(prepared(x).contiguous(), std::optional<Tensor>(), number), x);
}

// The elementwise product of two tensors, by our kernel if one of them has a factor for every row.
Tensor times(const Tensor& x, const Tensor& y) {
  const bool is_turned = y.dim() == 2 && y.size(1) == 1;
  const Tensor &factors = is_turned ? y : x, &rows = is_turned ? x : y;
  const bool are_rows =
      factors.dim() == 2 && rows.dim() == 2 && factors.size(0) == rows.size(0) && factors.size(1) == 1;
  if (!are_rows || factors.scalar_type() != at::kFloat || rows.scalar_type() != at::kFloat)
    return x * y;
  const std::optional<Tensor> by = prepared(factors).contiguous();
  return as_given(RowsTimes::apply(prepared(rows).contiguous(), by, 1.0), rows);
}
