// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "dtrain/dtrain.h"
#include "tests/gpu/cuda.h"
#include "tests/gpu/result.h"

namespace dtrain::gpu_check {

// "--name value" and "--name" alone, of the command line behind the check's name.
class Arguments {
 public:
  Arguments(int argc, char** argv);

  bool Has(const std::string& name) const { return values_.contains(name); }
  std::string Text(const std::string& name, const std::string& otherwise) const;
  int Number(const std::string& name, int otherwise) const;
  // Words with commas between them.
  std::vector<std::string> List(const std::string& name, const std::string& otherwise) const;

 private:
  std::map<std::string, std::string> values_;
};

// A failed call misses the check and ends the process.
void MustDtrain(Result& result, dtrain_status status, const char* what);
// dtrain_init and dtrain_finalize, timed into `result`; misses when the job is not on NCCL.
void Begin(Result& result, const dtrain_config* config = nullptr);
void End(Result& result);

// `size` elements of a job of `ranks` at which rank `rank` has what all can compute: small whole
// numbers, so that float sums are exact.
float ValueAt(size_t i, int rank);
float SumAt(size_t i, int ranks);

double SecondsSince(std::chrono::steady_clock::time_point start);
// The value below which `part` of all are; sorts. 0 for none.
double Quantile(std::vector<double>& values, double part);

inline void* Address(Pointer pointer) {
  return reinterpret_cast<void*>(static_cast<uintptr_t>(pointer));
}
inline Pointer NumberOf(const void* address) { return reinterpret_cast<uintptr_t>(address); }

// Each a check, or a part of one, of docs/gpu.md; the exit code.
using Check = int (*)(const Arguments&);

int CheckLibraries(const Arguments&);    // 1: what is loaded, which GPU
int CheckCollectives(const Arguments&);  // 2, 4: every collective is exact
int CheckInit(const Arguments&);         // 3: joins, or is refused
int CheckRawInit(const Arguments&);      // 3: what NCCL itself says to that
int CheckGroups(const Arguments&);       // 5
int CheckOrdering(const Arguments&);     // 7
int CheckAbort(const Arguments&);        // 9, 19
int CheckGraph(const Arguments&);        // 10, 20
int CheckLatency(const Arguments&);      // 11
int CheckWhere(const Arguments&);        // 12: kinds of memory
int CheckDevice(const Arguments&);       // 14: the UUID of the GPU that libdtrain uses
int CheckHold(const Arguments&);         // 15: takes memory and stays
int CheckNvml(const Arguments&);         // 16
int CheckRawSizes(const Arguments&);     // speed of NCCL itself, as dtrain bench measures
int CheckMixedMemory(const Arguments&);  // some ranks' buffers registered, others' not
int CheckThreads(const Arguments&);      // groups from several threads, in different order

}  // namespace dtrain::gpu_check
