// SPDX-License-Identifier: Apache-2.0
// What the real NCCL and the fake of its version must have in common, as far as it needs no GPU.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>

#include "gtest/gtest.h"
#include "tests/support/paths.h"

namespace dtrain::runtime {
namespace {

std::string RealNccl() {
  if (const char* named = std::getenv("DTRAIN_TEST_REAL_NCCL")) return named;
  for (const char* file : {"/usr/local/cuda/lib64/libnccl.so.2", "/usr/local/cuda/lib/libnccl.so.2",
                           "/usr/lib/x86_64-linux-gnu/libnccl.so.2"}) {
    if (access(file, R_OK) == 0) return file;
  }
  return "";
}

// How many entries the library's symbol table has, by its hash table.
size_t Symbols(const uint32_t* hash) {
  const uint32_t buckets = hash[0], first = hash[1], bloom = hash[2];
  const uint32_t* const bucket = hash + 4 + bloom * (sizeof(void*) / 4);
  const uint32_t* const chain = bucket + buckets;
  uint32_t last = *std::max_element(bucket, bucket + buckets);
  if (last < first) return first;
  while ((chain[last - first] & 1) == 0) ++last;
  return last + 1;
}

// The functions of NCCL's that the library exports.
std::set<std::string> Functions(void* library) {
  std::set<std::string> names;
  link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return names;
  const char* strings = nullptr;
  const ElfW(Sym)* symbols = nullptr;
  const uint32_t* hash = nullptr;
  for (const ElfW(Dyn)* entry = map->l_ld; entry->d_tag != DT_NULL; ++entry) {
    const auto at = entry->d_un.d_ptr;
    if (entry->d_tag == DT_STRTAB) strings = reinterpret_cast<const char*>(at);
    if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(at);
    if (entry->d_tag == DT_GNU_HASH) hash = reinterpret_cast<const uint32_t*>(at);
  }
  if (strings == nullptr || symbols == nullptr || hash == nullptr) return names;
  for (size_t i = 0; i < Symbols(hash); ++i) {
    const std::string name = strings + symbols[i].st_name;
    const bool defined = symbols[i].st_shndx != SHN_UNDEF;
    if (defined && (name.rfind("nccl", 0) == 0 || name.rfind("pnccl", 0) == 0)) names.insert(name);
  }
  return names;
}

template <typename Function>
Function* Get(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

TEST(RealNccl, HasTheVersionFunctionsAndTextsOfTheFake) {
  const std::string file = RealNccl();
  if (file.empty()) GTEST_SKIP() << "no libnccl.so.2; DTRAIN_TEST_REAL_NCCL may name one";
  void* const real = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (real == nullptr) GTEST_SKIP() << dlerror();
  int version = 0;
  ASSERT_EQ(Get<int(int*)>(real, "ncclGetVersion")(&version), 0);
  if (version != 22809) GTEST_SKIP() << file << " is " << version << ", and the fake is 22809";
  void* const fake = dlopen(LibraryPath("fake_nccl/libnccl.so.2").c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(fake, nullptr) << dlerror();
  int fakes = 0;
  ASSERT_EQ(Get<int(int*)>(fake, "ncclGetVersion")(&fakes), 0);
  EXPECT_EQ(fakes, version);
  auto functions = Functions(real);
  EXPECT_GT(functions.size(), 100u);
  functions.erase("ncclResetDebugInitInternal");  // not of the API
  EXPECT_EQ(Functions(fake), functions);
  for (int code = -1; code < 10; ++code) {
    EXPECT_STREQ(Get<const char*(int)>(fake, "ncclGetErrorString")(code),
                 Get<const char*(int)>(real, "ncclGetErrorString")(code));
  }
  EXPECT_STREQ(Get<const char*(void*)>(real, "ncclGetLastError")(nullptr), "");
  EXPECT_STREQ(Get<const char*(void*)>(fake, "ncclGetLastError")(nullptr), "");
  // Without a communicator.
  for (const char* name : {"ncclCommDestroy", "ncclCommAbort"}) {
    EXPECT_EQ(Get<int(void*)>(real, name)(nullptr), Get<int(void*)>(fake, name)(nullptr)) << name;
  }
  EXPECT_EQ(Get<int()>(real, "ncclGroupEnd")(), Get<int()>(fake, "ncclGroupEnd")());
}

}  // namespace
}  // namespace dtrain::runtime
