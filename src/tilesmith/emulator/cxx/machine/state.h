// A cluster of blocks as it runs. There is one at a time, and one thread of the operating system runs at a time: so all
// of this is plain global state.
#pragma once

#include <pthread.h>
#include <semaphore.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dmma.h"
#include "fragments.h"
#include "interface.h"
#include "machine/launch.h"
#include "machine/shadow.h"
#include "machine/written_registers.h"

namespace tilesmith::emulator {

using Site = const void*;  // an address in the kernel's code: who did it

struct Block;
struct Fiber;
struct Warp;

// An mbarrier. Its phase is complete when all arrivals and all expected bytes are there.
struct Phase {
  unsigned address;
  int expected_arrivals;
  int missing_arrivals;
  std::int64_t missing_bytes = 0;
  unsigned parity = 0;  // of the phase that is not complete
  bool is_fenced = false;
  Site site;  // of its latest arrival
  std::vector<Fiber*> waiting;
};

// What a thread waits for.
struct Wait {
  enum class Kind { nothing, warp, warpgroup, barrier, phase, cluster } kind = Kind::nothing;
  Site site = nullptr;
  int barrier = 0;
  const Phase* phase = nullptr;
  unsigned parity = 0;
};

// What the lanes of a warp do together, and how the last one of them does it for all.
struct Together {
  const char* name;
  void (*finish)(Warp& warp);
};

struct Contribution {
  std::uint64_t value;
  int argument;
  Shuffle how;
  double doubles[16];
  float floats[4];
  int integers[4];
  unsigned registers[6];
  unsigned address;
  Site site;
};

// A copy of a few bytes to shared memory that is under way.
struct PendingCopy {
  unsigned to;
  const unsigned char* from;
  int bytes, valid;
  int group;
};

// Registers that a tensor-core product has, in memory because their address was taken.
struct HeldRegisters {
  const unsigned char* begin;
  std::uint64_t bytes;
  bool are_sums;      // or else they are only read
  long last_product;  // that has them
};

struct Fiber {
  void* stack_pointer;
  unsigned char* stack;
  Block* block;
  Warp* warp;
  int number;  // in the block
  bool has_ended;
  bool has_awaited_predecessors;
  bool has_left_cluster_barrier;
  Wait wait;
  Contribution own;
  std::uint64_t result;
  DoubleSums double_sums;
  FloatSums float_sums;
  IntegerSums integer_sums;
  std::vector<PendingCopy> copies;
  int copy_groups;
  std::uint32_t fenced_at;
  // Products.
  std::vector<HeldRegisters> held;
  std::uintptr_t held_begin, held_end;
  WrittenRegisters written;
  long products, product_groups;
  bool has_product_fence;
  // Stores of TMA.
  long store_groups;

  int lane() const { return number % lanes; }
};

struct Warp {
  Fiber* first;
  int live;
  int arrived;
  const Together* what;
  int registers;  // 0 as long as it has those of its launch
};

// A tensor-core product of a warpgroup that is under way.
struct Product {
  std::uint64_t a_descriptor, b_descriptor;
  bool accumulate;
  ProductShape shape;
  Site site;
  int issued = 0;
  bool is_done = false;
  float* sums[warpgroup_threads] = {};
  const unsigned* a[warpgroup_threads] = {};  // if A is in registers
};

struct Warpgroup {
  Block* block;
  Fiber* first;
  int threads;  // the last one of a block may have fewer, and no products
  int live;
  std::deque<Product> products;  // that are under way
  long first_product;            // the number of the first of them: those before have been waited for
  std::vector<long> group_ends;
  int arrived;  // that wait for products
};

struct NamedBarrier {
  int threads = 0;  // that it is for
  int arrived = 0;
  std::vector<int> arrived_of_warp;
  std::vector<Fiber*> waiting;
};

struct Block {
  int rank;  // in the cluster
  Index index;
  unsigned char* window;
  Shadow shadow;
  sem_t token;     // whoever has it runs
  pthread_t host;  // the thread of the operating system
  void* host_stack_pointer;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<Warpgroup> warpgroups;
  NamedBarrier barriers[16];
  std::map<unsigned, Phase> phases;
  std::deque<Fiber*> runnable;
  int live;
};

// Work of TMA that is under way.
struct Operation {
  Fiber* issuer;
  Site site;
  virtual ~Operation() = default;
  virtual bool touches(const Block& block) const = 0;  // its shared memory
  virtual bool advance() = 0;                          // by a piece, or as a whole; true if it is done
};

struct Machine {
  const Launch* launch;
  std::deque<Block> blocks;
  std::deque<std::unique_ptr<Operation>> operations;
  Fiber* current;
  Fiber* next;  // whom a block's host thread has to run; none: the cluster is done
  Block* next_block;
  bool is_stopping;
  sem_t ready;  // a block's thread is there
  int live;
  int cluster_arrived;
  std::vector<Fiber*> cluster_waiting;
  std::uint32_t fence_clock;
  std::uint64_t random_state;
  std::string error;
  const unsigned char *image_begin, *image_end;  // of the kernel's library
  std::uint64_t window_bytes;
};

extern Machine machine;

inline std::uint64_t random_number() {
  std::uint64_t& x = machine.random_state;
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  return x * 0x2545f4914f6cdd1dull >> 16;
}
inline bool one_in(unsigned count) { return machine.launch->is_random && random_number() % count == 0; }

}  // namespace tilesmith::emulator
