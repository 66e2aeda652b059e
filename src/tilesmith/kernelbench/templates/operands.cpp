// What all functions of the extension do with their operands, which a caller may have anywhere.
#include <torch/extension.h>

using torch::Tensor;

// Of CUDA: see the end of this text.
static bool is_on_gpu(const Tensor& x);
static void* current_stream(const Tensor& x);

static void check(const char* error) { TORCH_CHECK(error == nullptr, error); }

// Raises if operands are of several types, or of one that has no kernels.
static void check_types(const std::vector<Tensor>& operands) {
  const auto type = operands[0].scalar_type();
  bool are_known = type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
  std::string names;
  for (const Tensor& x : operands) {
    are_known = are_known && x.scalar_type() == type;
    names += (names.empty() ? "" : " and ") + std::string(c10::toString(x.scalar_type()));
  }
  TORCH_CHECK_TYPE(are_known, "the operands must be float32 or 16-bit floats of one type, not ", names);
}

// Raises if operands are on several GPUs.
static void check_places(const std::vector<Tensor>& operands) {
  for (const Tensor& x : operands)
    TORCH_CHECK(x.device() == operands[0].device(), "the operands must be on one GPU, not on ", operands[0].device(),
                " and ", x.device());
}

// An operand as the kernels take it.
static Tensor prepared(const Tensor& x) { return (is_on_gpu(x) ? x : x.cuda()).to(at::kFloat).resolve_neg(); }

// A result as the caller of an operand expects it.
static Tensor as_given(const Tensor& out, const Tensor& x) {
  return out.device() == x.device() && out.scalar_type() == x.scalar_type() ? out : out.to(x.device(), x.scalar_type());
}

// Whether somebody has to know how a result came from this: gradients, forwards or backwards.
static bool is_followed(const Tensor& x) {
  return (at::GradMode::is_enabled() && x.requires_grad()) || x._fw_grad(/*level=*/0).defined();
}
