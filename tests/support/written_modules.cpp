// What runs on a GPU, on the CPU's memory; and what it was asked.
#include <mutex>

static bool is_on_gpu(const Tensor&) { return true; }

static char the_stream;
static void* current_stream(const Tensor&) { return &the_stream; }
static const char* checked(void* stream) { return stream == &the_stream ? nullptr : "another stream"; }

static Tensor at_address(const void* address, std::vector<int64_t> sizes, std::vector<int64_t> strides) {
  return at::from_blob(const_cast<void*>(address), sizes, strides, at::kFloat);
}

const char* multiply_any(const void* a, const void* b, void* out, const long long* sizes, void* stream) {
  const auto strides = [&](int first) { return std::vector<int64_t>(sizes + first, sizes + first + 3); };
  const at::NoGradGuard no_gradients;
  const Tensor x = at_address(a, {sizes[0], sizes[1], sizes[3]}, strides(4)),
               y = at_address(b, {sizes[0], sizes[3], sizes[2]}, strides(7));
  at_address(out, {sizes[0], sizes[1], sizes[2]}, strides(10)).copy_(at::matmul(x, y));
  return checked(stream);
}

using Call = std::vector<int64_t>;  // the number of a plan, and the addresses of its buffers
static std::vector<Call> calls;
static std::mutex of_calls;

const char* multiply_planned(int number, int device, void* const* buffers, void* stream) {
  const at::NoGradGuard no_gradients;
  for (const Plan& plan : plans_on(device))
    if (plan.number == number) {
      Tensor out = at::matmul(at_address(buffers[0], plan.a_shape, plan.a_strides),
                              at_address(buffers[1], plan.b_shape, plan.b_strides));
      if (plan.has_bias)
        out = out + at_address(buffers[4], {plan.b_shape.back()}, {1});
      at::from_blob(buffers[2], plan.out_shape, at::kFloat).copy_(activated(out, plan.activation));
      Call call = {number};
      for (int i = 0; i < 5; ++i) call.push_back(reinterpret_cast<int64_t>(buffers[i]));
      const std::lock_guard<std::mutex> lock(of_calls);
      calls.push_back(call);
      return checked(stream);
    }
  return "no such plan";
}

std::vector<Call> planned_calls() { return calls; }
void forget_calls() { calls.clear(); }

const char* multiply_rows(const void* x, void* y, long long rows, long long columns, const void* factors, float factor,
                          void* stream) {
  const at::NoGradGuard no_gradients;
  const Tensor by = factors ? at_address(factors, {rows, 1}, {1, 1}) : at::scalar_tensor(factor);
  at_address(y, {rows, columns}, {columns, 1}).copy_(at_address(x, {rows, columns}, {columns, 1}) * by);
  return checked(stream);
}

const char* keep_triangle(void* x, long long all_rows, long long rows, long long columns, long long diagonal,
                          bool upper, void* stream) {
  const at::NoGradGuard no_gradients;
  const Tensor y = at_address(x, {all_rows / rows, rows, columns}, {rows * columns, columns, 1});
  y.copy_(upper ? y.triu(diagonal) : y.tril(diagonal));
  return checked(stream);
}

using RunChain = void (*)(int, const float* const*, const unsigned (*)[2], int, float*, unsigned, unsigned,
                          const double*, int, bool);
static RunChain the_chains;
static std::vector<std::pair<int, bool>> chain_runs;  // the number, and whether it was by four elements
void use_chains(int64_t address) {
  the_chains = reinterpret_cast<RunChain>(address);
  chain_runs.clear();
}
std::vector<std::pair<int, bool>> chain_calls() { return chain_runs; }

const char* run_chain(int number, const float* const* tensors, const unsigned (*lies)[2], int count, float* out,
                      unsigned segments, unsigned length, const std::vector<double>& numbers, bool by_four,
                      void* stream) {
  the_chains(number, tensors, lies, count, out, segments, length, numbers.data(), numbers.size(), by_four);
  const std::lock_guard<std::mutex> lock(of_calls);
  chain_runs.emplace_back(number, by_four);
  return checked(stream);
}
