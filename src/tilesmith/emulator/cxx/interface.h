// What emulated kernels call: the instructions that have to do with other threads, with asynchronous work or with
// memory that a thread does not own. Plain loads and stores are seen by the compiler's hooks: see machine/hooks.h.
#pragma once

#include <cstdint>

namespace tilesmith::emulator {

struct Index {
  unsigned x, y, z;
};

// Of the thread that runs, kept up to date by the scheduler.
extern Index thread_index, block_index, grid_size;
extern unsigned char* shared_window;  // where the address 0 of shared memory would be

// Reads one of the above without a hook. It does not change as long as a thread looks at it.
template <typename Value>
inline __attribute__((always_inline)) Value own(const Value& place) {
  Value value;
#if defined(__x86_64__)
  asm("mov %1, %0" : "=r"(value) : "m"(place));
#elif defined(__aarch64__)
  if constexpr (sizeof(Value) == 8)
    asm("ldr %0, %1" : "=r"(value) : "m"(place));
  else
    asm("ldr %w0, %1" : "=r"(value) : "m"(place));
#else
#error "the emulator knows x86_64 and aarch64"
#endif
  return value;
}

// Barriers of a warp, of a block or a part of it, and of a cluster.
void warp_barrier();
void block_barrier();
void named_barrier(int id, int threads, bool waits);
void cluster_arrive();
void cluster_wait();

// What the lanes of a warp do together.
enum class Shuffle { from, exclusive_or, up };
std::uint64_t shuffle(std::uint64_t value, Shuffle how, int lane);
int warp_max(int value);
bool elect();
void set_registers(int registers, bool increases);
struct DoubleSums {
  double at[4];
};
DoubleSums dmma(double s0, double s1, double s2, double s3, double a0, double a1, double a2, double a3, double a4,
                double a5, double a6, double a7, double b0, double b1, double b2, double b3);
enum class Format { half, bfloat16, tf32 };
struct FloatSums {
  float at[4];
};
FloatSums mma(Format format, float s0, float s1, float s2, float s3, unsigned a0, unsigned a1, unsigned a2, unsigned a3,
              unsigned b0, unsigned b1);
struct IntegerSums {
  int at[4];
};
IntegerSums mma_of_bytes(bool are_signed, int s0, int s1, int s2, int s3, unsigned a0, unsigned a1, unsigned a2,
                         unsigned a3, unsigned b0, unsigned b1);
void store_matrices(unsigned address, const unsigned* registers, int matrices, bool transposed);
void load_matrices(unsigned address, unsigned* registers, int matrices, bool transposed);

// mbarriers, by their address in shared memory.
void phase_init(const void* barrier, int arrivals);
void phase_init_fence();
void phase_arrive(const void* barrier, unsigned expected_bytes);
void phase_arrive_remote(const void* barrier, unsigned block);
void phase_wait(const void* barrier, unsigned parity);

// Memory.
std::uint64_t load_remote(const void* address, unsigned block);
enum class Atomic { add, min, max };
std::uint32_t atomic(void* address, std::uint32_t value, Atomic how, bool is_signed);
void await_predecessors();
void async_proxy_fence();

// Copies from global to shared memory that a thread starts.
void copy_start(unsigned to, const void* from, int bytes, int valid);
void copy_commit();
void copy_wait(int groups);

// TMA.
void tensor_load(void* to, const void* map, const int* at, int rank, const void* barrier, unsigned blocks);
void tensor_store(const void* map, const int* at, int rank, unsigned from);
void tensor_store_commit();
void tensor_store_wait_read(int groups);
void check_tensor_map(const void* map);

// Tensor-core products of a warpgroup. One element of TF32 is a pair of 16-bit ones.
struct ProductShape {
  int columns;
  Format format;
  bool a_mn_major, b_mn_major;
};
void product(float* sum, const unsigned* a, std::uint64_t a_descriptor, std::uint64_t b_descriptor, bool accumulate,
             ProductShape shape);
void product_fence();
void product_commit();
void product_wait(int groups);

}  // namespace tilesmith::emulator
