// The emulated GPU. It is compiled once, and linked to every kernel's library.
#include "machine/grid.h"
#include "machine/hooks.h"

namespace tilesmith::emulator {

Machine machine;
Index thread_index, block_index, grid_size;
unsigned char* shared_window;
std::uintptr_t stack_begin, window_begin;
bool has_products;

}  // namespace tilesmith::emulator
