// Products: by a plan, if there is one for such operands, or by kernels that do any.
const char* multiply_any(const void* a, const void* b, void* out, const long long* sizes, void* stream);
const char* multiply_planned(int plan, int device, void* const* buffers, void* stream);

// The operands that a plan is for, and what to launch. A bias is contiguous, along the columns.
struct Plan {
  std::vector<int64_t> a_shape, a_strides, b_shape, b_strides;
  bool has_bias;
  std::string activation;
  int number;
  std::vector<int64_t> out_shape;
  int64_t workspace_bytes;

  bool is_for(const Tensor& a, const Tensor& b, const Tensor& bias, const std::string& wanted) const {
    if (a.sizes() != a_shape || b.sizes() != b_shape || a.strides() != a_strides || b.strides() != b_strides)
      return false;
    if (bias.defined() != has_bias || wanted != activation)
      return false;
    return !has_bias || (bias.dim() == 1 && bias.size(0) == b_shape.back() && bias.stride(0) == 1);
  }
};

static std::vector<Plan>& plans_on(c10::DeviceIndex device) {
  static std::vector<Plan> plans[2 + std::numeric_limits<c10::DeviceIndex>::max()];
  return plans[1 + device];  // that of a CPU is -1
}

using Row = std::tuple<std::vector<int64_t>, std::vector<int64_t>, std::vector<int64_t>, std::vector<int64_t>, bool,
                       std::string, int, std::vector<int64_t>, int64_t>;
void use_plans(int device, const std::vector<Row>& rows) {
  std::vector<Plan>& plans = plans_on(device);
  plans.clear();
  for (const Row& row : rows) plans.push_back(std::apply([](const auto&... member) { return Plan{member...}; }, row));
}

// activation(a @ b + bias) by the plan for such operands, which are float32 on a GPU; undefined if there is none.
static Tensor planned(const Tensor& a, const Tensor& b, const Tensor& bias, const std::string& activation) {
  constexpr uintptr_t alignment = 16;
  for (const Plan& plan : plans_on(a.get_device())) {
    if (!plan.is_for(a, b, bias, activation))
      continue;
    void* buffers[] = {a.data_ptr(), b.data_ptr(), nullptr, nullptr, bias.defined() ? bias.data_ptr() : nullptr};
    uintptr_t addresses = 0;
    for (void* buffer : buffers) addresses |= reinterpret_cast<uintptr_t>(buffer);
    if (addresses % alignment != 0)
      return {};
    const Tensor out = at::empty(plan.out_shape, a.options());
    const Tensor workspace = at::empty({plan.workspace_bytes}, a.options().dtype(at::kByte));
    buffers[2] = out.data_ptr();
    buffers[3] = workspace.data_ptr();
    check(multiply_planned(plan.number, a.get_device(), buffers, current_stream(a)));
    return out;
  }
  return {};
}

// The product of float32 matrices, or of batches of them, on a GPU. A bias, if there is one, is added to each row.
static Tensor multiplied(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias) {
  check_places(bias ? std::vector<Tensor>{a, b, *bias} : std::vector<Tensor>{a, b});
  const c10::DeviceGuard guard(a.device());
  if (const Tensor out = planned(a, b, bias.value_or(Tensor()), ""); out.defined())
    return out;
  const int64_t m = a.size(-2), k = a.size(-1), n = b.size(-1);
  const auto batch = at::infer_size(a.sizes().slice(0, a.dim() - 2), b.sizes().slice(0, b.dim() - 2));
  const auto batch_of = [&](int64_t rows, int64_t columns) {
    auto shape = batch;
    shape.insert(shape.end(), {rows, columns});
    return shape;
  };
  const Tensor out = at::empty(batch_of(m, n), a.options());
  if (out.numel() == 0 || k == 0)
    return bias ? out.copy_(bias->expand_as(out)) : out.zero_();
  const Tensor x = a.expand(batch_of(m, k)).reshape({-1, m, k}), y = b.expand(batch_of(k, n)).reshape({-1, k, n}),
               z = out.view({-1, m, n});
  std::vector<long long> sizes = {z.size(0), m, n, k};
  for (const Tensor& each : {x, y, z}) sizes.insert(sizes.end(), each.strides().begin(), each.strides().end());
  check(multiply_any(x.data_ptr(), y.data_ptr(), z.data_ptr(), sizes.data(), current_stream(a)));
  return bias ? out.add_(*bias) : out;
}

static Tensor product(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias = {});

// The same with gradients, which are products as well.
struct Product : torch::autograd::Function<Product> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& a, const Tensor& b,
                        const std::optional<Tensor>& bias) {
    context->save_for_backward({a, b});
    context->saved_data["has_bias"] = bias.has_value();
    return multiplied(a, b, bias);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &a = saved[0], &b = saved[1], &gradient = gradients[0];
    Tensor of_a, of_b, of_bias;
    if (context->needs_input_grad(0))
      of_a = product(gradient, b.transpose(-2, -1)).sum_to_size(a.sizes());
    if (context->needs_input_grad(1))
      of_b = product(a.transpose(-2, -1), gradient).sum_to_size(b.sizes());
    if (context->saved_data["has_bias"].toBool() && context->needs_input_grad(2))
      of_bias = gradient.sum(0);
    return {of_a, of_b, of_bias};
  }
};

static Tensor product(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias) {
  const bool is_any_followed = is_followed(a) || is_followed(b) || (bias && is_followed(*bias));
  return is_any_followed ? Product::apply(a, b, bias) : multiplied(a, b, bias);
}

// The product of PyTorch, of vectors too. 16-bit floats are multiplied as float32.
Tensor multiply(const Tensor& a, const Tensor& b) {
  check_types({a, b});
  TORCH_CHECK(a.dim() > 0 && b.dim() > 0 && a.size(-1) == b.size(b.dim() > 1 ? -2 : -1), "cannot multiply ", a.sizes(),
              " by ", b.sizes());
  const Tensor x = prepared(a), y = prepared(b);
  Tensor out = product(a.dim() == 1 ? x.unsqueeze(0) : x, b.dim() == 1 ? y.unsqueeze(1) : y);
  if (a.dim() == 1)
    out = out.squeeze(-2);
  if (b.dim() == 1)
    out = out.squeeze(-1);
  return as_given(out, a);
}
