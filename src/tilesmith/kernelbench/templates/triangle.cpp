// Zeros below a diagonal, or above it.
const char* keep_triangle(void* x, long long all_rows, long long rows, long long columns, long long diagonal,
                          bool upper, void* stream);

// Written into a contiguous tensor that nobody else has.
struct Triangle : torch::autograd::Function<Triangle> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, int64_t diagonal, bool upper) {
    context->mark_dirty({x});
    context->saved_data["diagonal"] = diagonal;
    context->saved_data["upper"] = upper;
    if (x.numel() > 0) {
      const c10::DeviceGuard guard(x.device());
      const int64_t rows = x.size(-2), columns = x.size(-1);
      check(keep_triangle(x.data_ptr(), x.numel() / columns, rows, columns, diagonal, upper, current_stream(x)));
    }
    return x;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const int64_t diagonal = context->saved_data["diagonal"].toInt();
    const bool upper = context->saved_data["upper"].toBool();
    const Tensor& gradient = gradients[0];
    return {upper ? gradient.triu(diagonal) : gradient.tril(diagonal), Tensor(), Tensor()};
  }
};

Tensor triangle(const Tensor& x, int64_t diagonal, bool upper) {
  if (is_on_gpu(x) && x.scalar_type() == at::kFloat && x.is_contiguous())
    return Triangle::apply(x, diagonal, upper);
  return upper ? x.triu(diagonal) : x.tril(diagonal);
}
