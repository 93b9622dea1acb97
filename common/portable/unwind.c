// SPDX-License-Identifier: Apache-2.0
// What GCC's unwinder of glibc 2.35 and later asks for each frame (_dl_find_object), for glibcs
// before. Without it every exception would end the program. Slower, as it looks at all objects: we
// throw nothing, and what libraries throw is rare.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>

struct Wanted {
  uintptr_t address;
  struct dl_find_object* found;
};

static int Look(struct dl_phdr_info* object, size_t size, void* argument) {
  (void)size;
  const struct Wanted* wanted = argument;
  uintptr_t begin = UINTPTR_MAX, end = 0, frames = 0;
  int inside = 0;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)* header = &object->dlpi_phdr[i];
    const uintptr_t from = object->dlpi_addr + header->p_vaddr, to = from + header->p_memsz;
    if (header->p_type == PT_GNU_EH_FRAME) frames = from;
    if (header->p_type != PT_LOAD) continue;
    if (from < begin) begin = from;
    if (to > end) end = to;
    inside |= wanted->address >= from && wanted->address < to;
  }
  if (!inside || frames == 0) return 0;
  wanted->found->dlfo_flags = 0;
  wanted->found->dlfo_map_start = (void*)begin;
  wanted->found->dlfo_map_end = (void*)end;
  wanted->found->dlfo_link_map = NULL;  // the unwinder does not use it
  wanted->found->dlfo_eh_frame = (void*)frames;
  return 1;
}

int _dl_find_object(void* address, struct dl_find_object* found) {
  struct Wanted wanted = {(uintptr_t)address, found};
  return dl_iterate_phdr(Look, &wanted) == 1 ? 0 : -1;
}
