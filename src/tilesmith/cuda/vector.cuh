// Several values that move together.
#pragma once

namespace tilesmith {

// `count` elements side by side, moved by one access of up to 16 bytes.
template <typename T, int count>
struct alignas(sizeof(T) * count < 16 ? sizeof(T) * count : 16) Vector {
  T element[count];
};

}  // namespace tilesmith
