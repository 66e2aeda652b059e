// CUDA C++ for a C++ compiler: the words of the language and the built-in functions that our kernels use. What is not
// here does not compile.
#pragma once

#include "formats.h"
#include "interface.h"

#define __device__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ thread_local  // every block has a thread of the operating system

namespace tilesmith::emulator {

// A built-in index.
inline __attribute__((always_inline)) Index own_index(const Index& index) {
  return {own(index.x), own(index.y), own(index.z)};
}

template <typename Value>
inline __attribute__((always_inline)) Value shuffled(Value value, Shuffle how, int lane) {
  static_assert(sizeof(Value) == 4 || sizeof(Value) == 8);
  std::uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof value);
  bits = shuffle(bits, how, lane);
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

template <typename A, typename B>
using Common = decltype(true ? A() : B());

}  // namespace tilesmith::emulator

#define threadIdx ::tilesmith::emulator::own_index(::tilesmith::emulator::thread_index)
#define blockIdx ::tilesmith::emulator::own_index(::tilesmith::emulator::block_index)
#define gridDim ::tilesmith::emulator::own_index(::tilesmith::emulator::grid_size)

#define __syncthreads ::tilesmith::emulator::block_barrier
#define __syncwarp ::tilesmith::emulator::warp_barrier

#define TILESMITH_BUILT_IN_FUNCTION inline __attribute__((always_inline))

// The mask of lanes is that of the whole warp in all our kernels.
template <typename Value>
TILESMITH_BUILT_IN_FUNCTION Value __shfl_sync(unsigned, Value value, int lane) {
  return tilesmith::emulator::shuffled(value, tilesmith::emulator::Shuffle::from, lane);
}
template <typename Value>
TILESMITH_BUILT_IN_FUNCTION Value __shfl_xor_sync(unsigned, Value value, int lanes) {
  return tilesmith::emulator::shuffled(value, tilesmith::emulator::Shuffle::exclusive_or, lanes);
}
template <typename Value>
TILESMITH_BUILT_IN_FUNCTION Value __shfl_up_sync(unsigned, Value value, int lanes) {
  return tilesmith::emulator::shuffled(value, tilesmith::emulator::Shuffle::up, lanes);
}

TILESMITH_BUILT_IN_FUNCTION unsigned __float_as_uint(float x) { return tilesmith::emulator::bits_of(x); }
TILESMITH_BUILT_IN_FUNCTION int __float_as_int(float x) { return static_cast<int>(tilesmith::emulator::bits_of(x)); }
TILESMITH_BUILT_IN_FUNCTION float __uint_as_float(unsigned x) { return tilesmith::emulator::float_of(x); }
TILESMITH_BUILT_IN_FUNCTION float __int_as_float(int x) {
  return tilesmith::emulator::float_of(static_cast<unsigned>(x));
}
TILESMITH_BUILT_IN_FUNCTION float __fmaf_rn(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
TILESMITH_BUILT_IN_FUNCTION double __fma_rn(double x, double y, double z) { return __builtin_fma(x, y, z); }
#define fmaxf __builtin_fmaxf
#define fabsf __builtin_fabsf
#define erff __builtin_erff
#define erf __builtin_erf
#define expf __builtin_expf
#define exp __builtin_exp

template <typename A, typename B>
TILESMITH_BUILT_IN_FUNCTION constexpr tilesmith::emulator::Common<A, B> min(A a, B b) {
  const tilesmith::emulator::Common<A, B> x = a, y = b;
  return y < x ? y : x;
}
template <typename A, typename B>
TILESMITH_BUILT_IN_FUNCTION constexpr tilesmith::emulator::Common<A, B> max(A a, B b) {
  const tilesmith::emulator::Common<A, B> x = a, y = b;
  return x < y ? y : x;
}
// A NaN loses against a number.
TILESMITH_BUILT_IN_FUNCTION float min(float x, float y) { return __builtin_fminf(x, y); }
TILESMITH_BUILT_IN_FUNCTION float max(float x, float y) { return __builtin_fmaxf(x, y); }
TILESMITH_BUILT_IN_FUNCTION double min(double x, double y) { return __builtin_fmin(x, y); }
TILESMITH_BUILT_IN_FUNCTION double max(double x, double y) { return __builtin_fmax(x, y); }
TILESMITH_BUILT_IN_FUNCTION int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
TILESMITH_BUILT_IN_FUNCTION unsigned __funnelshift_l(unsigned low, unsigned high, unsigned bits) {
  return static_cast<unsigned>(((static_cast<unsigned long long>(high) << 32 | low) << (bits & 31)) >> 32);
}
TILESMITH_BUILT_IN_FUNCTION unsigned __funnelshift_r(unsigned low, unsigned high, unsigned bits) {
  return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (bits & 31));
}

#define TILESMITH_ATOMIC(name, how)                                                                    \
  TILESMITH_BUILT_IN_FUNCTION int name(int* at, int value) {                                           \
    return static_cast<int>(tilesmith::emulator::atomic(at, static_cast<unsigned>(value), how, true)); \
  }                                                                                                    \
  TILESMITH_BUILT_IN_FUNCTION unsigned name(unsigned* at, unsigned value) {                            \
    return tilesmith::emulator::atomic(at, value, how, false);                                         \
  }
TILESMITH_ATOMIC(atomicAdd, tilesmith::emulator::Atomic::add)
TILESMITH_ATOMIC(atomicMin, tilesmith::emulator::Atomic::min)
TILESMITH_ATOMIC(atomicMax, tilesmith::emulator::Atomic::max)

TILESMITH_BUILT_IN_FUNCTION unsigned long long __cvta_generic_to_shared(const void* pointer) {
  return static_cast<unsigned long long>(static_cast<const unsigned char*>(pointer) -
                                         tilesmith::emulator::own(tilesmith::emulator::shared_window));
}
