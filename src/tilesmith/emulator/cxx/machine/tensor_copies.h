// TMA: boxes of tensors between global and shared memory. They are checked where they are started, and
// arrive later; with a seed in pieces.
#pragma once

#include <algorithm>

#include "machine/barriers.h"
#include "machine/memory.h"
#include "tensor_map.h"

namespace tilesmith::emulator {

inline TensorMap checked_map(Site site, const void* map, int rank) {
  TensorMap copy;
  std::memcpy(&copy, map, sizeof copy);
  const std::string wrong = fault_of(copy);
  if (!wrong.empty())
    fault(site, "a tensor map is wrong: " + wrong);
  if (rank && static_cast<int>(copy.rank) != rank)
    fault(site, text("%d coordinates for a tensor of %u dimensions", rank, copy.rank));
  return copy;
}

inline std::vector<BoxPiece> checked_box(Site site, Access global_access, const void* map, const int* at, int rank,
                                         std::uint32_t shared_address) {
  const TensorMap tensor = checked_map(site, map, rank);
  const std::string wrong = place_fault_of(shared_address);
  if (!wrong.empty())
    fault(site, "a box is wrong: " + wrong);
  std::vector<BoxPiece> pieces;
  visit_box(tensor, at, shared_address, [&](const BoxPiece& piece) {
    if (piece.count)
      check_global(site, global_access, piece.global_address + piece.first, piece.count);
    pieces.push_back(piece);
  });
  return pieces;
}

struct BoxOperation : Operation {
  std::vector<BoxPiece> pieces;
  std::size_t done = 0;

  std::size_t end_of_next() const {
    const std::size_t left = pieces.size() - done;
    return done + (machine.launch->is_random ? 1 + random_number() % left : left);
  }
};

inline void round_to_tf32(unsigned char (&piece)[granule_bytes]) {
  std::uint32_t values[granule_bytes / sizeof(std::uint32_t)];
  std::memcpy(values, piece, sizeof values);
  for (std::uint32_t& bits : values) bits = bits_to_tf32(bits);
  std::memcpy(piece, values, sizeof values);
}

struct TensorLoad : BoxOperation {
  std::vector<Block*> targets;
  unsigned barrier;

  bool touches(const Block& block) const override {
    return std::find(targets.begin(), targets.end(), &block) != targets.end();
  }

  bool advance() override {
    const std::size_t end = end_of_next();
    const auto bytes = static_cast<std::int64_t>((end - done) * granule_bytes);
    for (; done < end; ++done) {
      const BoxPiece& piece = pieces[done];
      unsigned char bytes_of_piece[granule_bytes] = {};
      std::memcpy(bytes_of_piece + piece.first,
                  reinterpret_cast<const unsigned char*>(piece.global_address) + piece.first, piece.count);
      if (piece.rounds_to_tf32)
        round_to_tf32(bytes_of_piece);
      for (Block* block : targets) {
        std::memcpy(block->window + piece.shared_address, bytes_of_piece, granule_bytes);
        end_flight(*block, piece.shared_address, granule_bytes);
      }
    }
    for (Block* block : targets) {
      Phase& phase = block->phases.at(barrier);
      phase.missing_bytes -= bytes;
      complete_if_due(phase);
    }
    return done == pieces.size();
  }
};

struct TensorStore : BoxOperation {
  long group;

  bool touches(const Block& block) const override { return issuer->block == &block; }

  bool advance() override {
    Block& block = *issuer->block;
    for (const std::size_t end = end_of_next(); done < end; ++done) {
      const BoxPiece& piece = pieces[done];
      std::memcpy(reinterpret_cast<unsigned char*>(piece.global_address) + piece.first,
                  block.window + piece.shared_address + piece.first, piece.count);
      end_reading(block, piece.shared_address, granule_bytes);
    }
    return done == pieces.size();
  }
};

void check_tensor_map(const void* map) { checked_map(__builtin_return_address(0), map, 0); }

// `blocks`: a bit for each block of the cluster that gets the box; none for this one alone.
void tensor_load(void* to, const void* map, const int* at, int rank, const void* barrier, unsigned blocks) {
  const Site site = __builtin_return_address(0);
  Block& own = *machine.current->block;
  const unsigned address = address_of(own, to);
  auto load = std::make_unique<TensorLoad>();
  load->issuer = machine.current;
  load->site = site;
  load->barrier = address_of(own, barrier);
  load->pieces = checked_box(site, Access::read, map, at, rank, address);
  for (Block& block : machine.blocks)
    if (blocks ? blocks >> block.rank & 1u : &block == &own)
      load->targets.push_back(&block);
  if (blocks >> machine.blocks.size())
    fault(site, text("a box for blocks that the cluster of %zu does not have", machine.blocks.size()));
  for (Block* block : load->targets) {
    if (block->live == 0)
      fault(site, text("loads to block %d of the cluster, which has ended", block->rank));
    if (!phase_at(*block, load->barrier, site).is_fenced)
      fault(site, text("the mbarrier at %u was initialised with no fence since", load->barrier));
    for (const BoxPiece& piece : load->pieces) begin_flight(*block, site, piece.shared_address, granule_bytes);
  }
  machine.operations.push_back(std::move(load));
  maybe_yield();
}

void tensor_store(const void* map, const int* at, int rank, unsigned from) {
  const Site site = __builtin_return_address(0);
  auto store = std::make_unique<TensorStore>();
  store->issuer = machine.current;
  store->site = site;
  store->group = machine.current->store_groups;
  store->pieces = checked_box(site, Access::write, map, at, rank, from);
  for (const BoxPiece& piece : store->pieces)
    begin_reading(*machine.current->block, site, piece.shared_address, granule_bytes);
  machine.operations.push_back(std::move(store));
  maybe_yield();
}

void tensor_store_commit() { ++machine.current->store_groups; }

void tensor_store_wait_read(int groups) {
  Fiber& self = *machine.current;
  auto& operations = machine.operations;
  for (std::size_t i = 0; i < operations.size();) {
    const auto* store = dynamic_cast<TensorStore*>(operations[i].get());
    if (store && store->issuer == &self && store->group < self.store_groups - groups) {
      while (!operations[i]->advance()) {
      }
      operations.erase(operations.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  maybe_yield();
}

}  // namespace tilesmith::emulator
