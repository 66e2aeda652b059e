// A layer: a product, a bias and an activation, which is in the product's own kernels where no gradient is needed.
static Tensor activated(const Tensor& x, const std::string& activation) {
  if (activation == "relu")
    return at::relu(x);
  if (activation == "gelu")
    return at::gelu(x);
  if (activation == "gelu_tanh")
    return at::gelu(x, "tanh");
  if (activation == "silu")
    return at::silu(x);
  TORCH_CHECK(activation.empty(), "there is no activation ", activation);
  return x;
}

Tensor linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, const std::string& activation) {
  std::vector<Tensor> given = {x, weight};
  if (bias)
    given.push_back(*bias);
  check_types(given);
  TORCH_CHECK(x.dim() > 0 && weight.dim() == 2 && x.size(-1) == weight.size(1), "cannot multiply ", x.sizes(),
              " by the transpose of ", weight.sizes());
  auto shape = x.sizes().vec();
  shape.back() = weight.size(0);
  const Tensor rows = prepared(x).reshape({c10::multiply_integers(x.sizes().slice(0, x.dim() - 1)), x.size(-1)}),
               columns = prepared(weight).t();
  const std::optional<Tensor> added = bias ? std::optional(prepared(*bias)) : std::nullopt;
  check_places(added ? std::vector<Tensor>{rows, columns, *added} : std::vector<Tensor>{rows, columns});
  if (x.scalar_type() == at::kFloat && std::none_of(given.begin(), given.end(), is_followed)) {
    const c10::DeviceGuard guard(rows.device());
    if (const Tensor out = planned(rows, columns, added.value_or(Tensor()), activation); out.defined())
      return as_given(out.view(shape), x);
  }
  return activated(as_given(product(rows, columns, added), x).view(shape), activation);
}
