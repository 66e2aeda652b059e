// The emulator's arithmetic and geometry as functions that Python can call.
#include <cstdio>

#include "dmma.h"
#include "formats.h"
#include "fragments.h"
#include "half_pair.h"
#include "matrix_descriptor.h"
#include "tensor_core.h"
#include "tensor_map.h"

using namespace tilesmith::emulator;

namespace {
template <typename To, typename From, typename Convert>
void convert_all(To* to, const From* from, int count, Convert convert) {
  for (int i = 0; i < count; ++i) to[i] = convert(from[i]);
}

void give(const std::string& words, char* to, int size) { std::snprintf(to, size, "%s", words.c_str()); }
}  // namespace

extern "C" {

void multiply_add_half(float* sum, const std::uint16_t* a, const std::uint16_t* b, int n, int accumulate) {
  multiply_add<Format::half, 64>(sum, a, b, n, accumulate);
}
void multiply_add_bfloat16(float* sum, const std::uint16_t* a, const std::uint16_t* b, int n, int accumulate) {
  multiply_add<Format::bfloat16, 64>(sum, a, b, n, accumulate);
}

void halves_to_floats(float* to, const std::uint16_t* from, int n) { convert_all(to, from, n, half_to_float); }
void floats_to_halves(std::uint16_t* to, const float* from, int n) { convert_all(to, from, n, float_to_half); }
void bfloat16s_to_floats(float* to, const std::uint16_t* from, int n) { convert_all(to, from, n, bfloat16_to_float); }
void floats_to_bfloat16s(std::uint16_t* to, const float* from, int n) { convert_all(to, from, n, float_to_bfloat16); }

std::uint32_t pair_absolute(std::uint32_t x, std::uint32_t) { return half_pair_absolute(x); }
std::uint32_t pair_min(std::uint32_t x, std::uint32_t y) { return half_pair_min(x, y); }
std::uint32_t pair_max_or_nan(std::uint32_t x, std::uint32_t y) { return half_pair_max_or_nan(x, y); }
std::uint32_t pair_add(std::uint32_t x, std::uint32_t y) { return half_pair_add(x, y); }

void warp_dmma(double (*sum)[4], const double (*a)[8], const double (*b)[4]) {
  dmma(*reinterpret_cast<double (*)[32][4]>(sum), *reinterpret_cast<const double (*)[32][8]>(a),
       *reinterpret_cast<const double (*)[32][4]>(b));
}

void tensor_map_fault(const TensorMap* map, char* to, int size) { give(fault_of(*map), to, size); }

// `shared` is where the address 0 would be.
void load_box(const TensorMap* map, const std::int32_t* coordinates, unsigned char* shared, std::uint32_t address) {
  visit_box(*map, coordinates, address, [shared](const BoxPiece& piece) {
    unsigned char* to = shared + piece.shared_address;
    std::memset(to, 0, granule_bytes);
    if (piece.count)
      std::memcpy(to + piece.first, reinterpret_cast<const void*>(piece.global_address + piece.first), piece.count);
  });
}
void store_box(const TensorMap* map, const std::int32_t* coordinates, const unsigned char* shared,
               std::uint32_t address) {
  visit_box(*map, coordinates, address, [shared](const BoxPiece& piece) {
    if (piece.count)
      std::memcpy(reinterpret_cast<void*>(piece.global_address + piece.first),
                  shared + piece.shared_address + piece.first, piece.count);
  });
}

void descriptor_fault(std::uint64_t bits, int mn_major, char* to, int size) {
  give(fault_of(MatrixDescriptor::of(bits), mn_major ? Major::mn : Major::k), to, size);
}

// The first address outside, or -1.
long long gather_operand(std::uint16_t* to, std::uint64_t bits, int mn_major, int rows, const unsigned char* window,
                         std::uint32_t begin, std::uint32_t end) {
  const auto outside =
      gather(to, MatrixDescriptor::of(bits), mn_major ? Major::mn : Major::k, rows, window, begin, end);
  return outside ? static_cast<long long>(*outside) : -1;
}

int sum_place(int thread, int i, int columns) {
  const Place place = wgmma_sum_place(thread, i);
  return place.row * columns + place.column;
}
void place_a(std::uint16_t* matrix, int thread, const std::uint32_t (*registers)[4]) {
  place_a_registers(matrix, thread, *registers);
}
int matrix_element(int lane, int e, int transposed) {
  const Place place = matrix_place(lane, e, transposed);
  return place.row * 8 + place.column;
}
}
