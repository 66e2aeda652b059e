// Chains: operations of torch in one kernel, for float32 tensors that lie as they did when the module was written.
const char* run_chain(int number, const float* const* tensors, const unsigned (*lies)[2], int count, float* out,
                      unsigned segments, unsigned length, const std::vector<double>& numbers, bool by_four,
                      void* stream);

// How each operand lies over the first one, how many dimensions are reduced, how many groups of channels are, and what
// the result has of them: see _chain.
using ChainShape = std::tuple<std::vector<std::string>, int64_t, int64_t, std::string>;

static int64_t product_of(at::IntArrayRef sizes) { return c10::multiply_integers(sizes); }

// Element i of the basis has element i / inner % period of an operand.
struct Lies {
  int64_t inner, period;
};

// How an operand lies over a basis; nothing if it does not as it should.
static std::optional<Lies> lying(const Tensor& x, const std::string& text, at::IntArrayRef basis) {
  if (text == "c") {
    if (x.dim() != 1 || basis.size() < 2 || x.size(0) != basis[1])
      return {};
    return Lies{product_of(basis.slice(2)), basis[1]};
  }
  if (x.dim() != static_cast<int64_t>(text.size()) || text.size() > basis.size())
    return {};
  Lies lies = {1, 1};
  for (int64_t i = x.dim() - 1; i >= 0; --i) {
    const int64_t size = basis[basis.size() - x.dim() + i];
    if (x.size(i) != (text[i] == 'n' ? size : 1))
      return {};
    if (text[i] == 'n')
      lies.period *= size;
    else if (lies.period == 1)
      lies.inner *= size;
  }
  if (lies.period == 1)
    lies.inner = product_of(basis);  // one value for all
  return lies;
}

// What a chain gives; nothing if its kernel does not take these tensors.
std::optional<Tensor> chain(int number, const ChainShape& shape, const std::vector<Tensor>& given,
                            const std::vector<double>& numbers) {
  constexpr int64_t max_count = std::numeric_limits<int32_t>::max();
  constexpr uintptr_t alignment = 16;
  const auto& [operands, reduced_dims, groups, result] = shape;
  const Tensor& first = given.at(0);
  const int64_t count = first.numel(), dims = first.dim();
  if (!is_on_gpu(first) || count == 0 || count > max_count || dims < reduced_dims)
    return {};
  const auto whole = first.sizes();
  const auto kept = whole.slice(0, dims - reduced_dims);
  int64_t length = reduced_dims > 0 ? product_of(whole.slice(dims - reduced_dims)) : count;
  if (groups > 0) {
    if (dims < 2 || whole[1] % groups != 0)
      return {};
    length = whole[1] / groups * product_of(whole.slice(2));
  }
  // A segment has one block: torch's kernels, which share it, are faster with few long ones.
  constexpr int64_t min_segments = 128, max_length_of_few = 1 << 16;
  const bool has_segments = reduced_dims > 0 || groups > 0;
  if (has_segments && length > max_length_of_few && count / length < min_segments)
    return {};
  std::vector<int64_t> reduced = kept.vec();
  if (result != "dropped")
    reduced.resize(dims, 1);

  std::vector<const float*> tensors;
  std::vector<std::array<unsigned, 2>> lies;
  bool by_four = length % 4 == 0;
  for (size_t i = 0; i < given.size(); ++i) {
    const Tensor& x = given[i];
    const std::string& text = operands.at(i);
    const bool is_of_segments = text[0] == '/';
    const auto found = is_of_segments ? lying(x, text.substr(1), reduced) : lying(x, text, whole);
    if (!found || x.scalar_type() != at::kFloat || x.device() != first.device() || !x.is_contiguous() || x.is_neg() ||
        x._fw_grad(/*level=*/0).defined())
      return {};
    tensors.push_back(static_cast<const float*>(x.data_ptr()));
    lies.push_back({static_cast<unsigned>(found->inner), static_cast<unsigned>(found->period)});
    if (!is_of_segments && found->period > 1) {
      const bool is_aligned = reinterpret_cast<uintptr_t>(x.data_ptr()) % alignment == 0;
      by_four = by_four && (found->inner == 1 ? found->period % 4 == 0 && is_aligned : found->inner % 4 == 0);
    }
  }
  const c10::DeviceGuard guard(first.device());
  const Tensor out = at::empty(result == "whole" ? whole.vec() : reduced, first.options());
  check(run_chain(number, tensors.data(), reinterpret_cast<const unsigned (*)[2]>(lies.data()), tensors.size(),
                  static_cast<float*>(out.data_ptr()), count / length, length, numbers, by_four,
                  current_stream(first)));
  return out;
}
