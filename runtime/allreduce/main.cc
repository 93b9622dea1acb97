// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <new>
#include <string>
#include <vector>

#include "dtrain/dtrain.h"
#include "runtime/allreduce/bench.h"
#include "runtime/allreduce/options.h"
#include "runtime/allreduce/pairs.h"
#include "runtime/allreduce/room.h"

namespace dtrain::allreduce {
namespace {

// Bus bandwidth over algorithm bandwidth: what a perfect ring sends per byte of the larger buffer.
double BusFactor(Kind kind) {
  const double n = dtrain_size();
  switch (kind) {
    case Kind::kBroadcast:
    case Kind::kReduce:
    case Kind::kPairs:
      return 1;
    case Kind::kAllreduce:
      return 2 * (n - 1) / n;
    default:
      return (n - 1) / n;
  }
}

double Gigabytes(size_t bytes, double seconds) {
  return static_cast<double>(bytes) / 1e9 / seconds;
}

const char* TextOf(Memory memory) {
  switch (memory) {
    case Memory::kShared:
      return "memory shared within a node";
    case Memory::kDevice:
      return "GPU memory";
    default:
      return "host memory";
  }
}

// The table or the array, on rank 0; nothing elsewhere. Lines appear as they are known.
class Report {
 public:
  Report(const Options& options, Memory memory, Manner manner)
      : options_(options), memory_(memory), manner_(manner), speaks_(dtrain_rank() == 0) {}

  void Begin() {
    if (!speaks_) return;
    if (options_.json) {
      std::printf("[\n");
      return;
    }
    const int ranks = dtrain_size();
    const char* many = ranks == 1 ? "" : "s";
    if (options_.kind == Kind::kPairs) {
      std::printf("# dtrain-allreduce %s: %d rank%s, %s, p2p\n# %5s %6s %12s %12s\n",
                  dtrain_version(), ranks, many, dtrain_backend(), "from", "to", "latency (us)",
                  "(GB/s)");
      return;
    }
    const bool pipelined = manner_ == Manner::kPipelined;
    std::printf("# dtrain-allreduce %s: %d rank%s, %s, %s of %s in %s\n", dtrain_version(), ranks,
                many, dtrain_backend(), NameOf(options_.kind), NameOf(options_.type),
                TextOf(memory_));
    std::printf(pipelined ? "# pipelined: the mean of calls back to back, over calls and ranks\n"
                          : "# one call at a time: medians of the slowest rank's time\n");
    if (pipelined) std::printf("# %43s%40s%40s\n", "", "out of place", "in place");
    std::printf("# %11s %13s %8s %6s", "size", "count", "type", "op");
    for (int i = 0; i < (pipelined ? 2 : 1); ++i) {
      std::printf(" %12s %9s %9s %7s", "time", "algbw", "busbw", "wrong");
    }
    std::printf("\n# %11s %13s %8s %6s", "(B)", "(elements)", "", "");
    for (int i = 0; i < (pipelined ? 2 : 1); ++i) {
      std::printf(" %12s %9s %9s %7s", "(us)", "(GB/s)", "(GB/s)", "");
    }
    std::printf("\n");
    std::fflush(stdout);
  }

  void Add(const Row& row) {
    if (!speaks_) return;
    if (options_.json) {
      std::printf("%s{\"bytes\": %zu", Comma(), row.bytes);
      AddJson("", row.bytes, row.timing);
      if (row.in_place) AddJson("in_place_", row.bytes, *row.in_place);
      std::printf(", \"manner\": \"%s\", \"memory\": \"%s\"}\n", NameOf(manner_), NameOf(memory_));
    } else {
      std::printf("  %11zu %13zu %8s %6s", row.bytes, row.bytes / ElementBytes(options_.type),
                  NameOf(options_.type), Reduces(options_.kind) ? NameOf(options_.op) : "-");
      AddCells(row.bytes, row.timing);
      if (row.in_place) AddCells(row.bytes, *row.in_place);
      std::printf("\n");
    }
    std::fflush(stdout);
  }

  void Add(const PairRow& row) {
    if (!speaks_) return;
    if (options_.json) {
      std::printf("%s{\"from\": %d, \"to\": %d, \"latency_us\": %.3f, \"bandwidth_gbs\": %.6g}\n",
                  Comma(), row.from, row.to, row.latency * 1e6, row.bandwidth / 1e9);
    } else {
      std::printf("  %5d %6d %12.2f %12.3f\n", row.from, row.to, row.latency * 1e6,
                  row.bandwidth / 1e9);
    }
  }

  void End(int64_t wrong) {
    if (!speaks_) return;
    if (options_.json) std::printf("]\n");
    if (wrong > 0) {
      std::fprintf(stderr, "dtrain-allreduce: %" PRId64 " elements were wrong, see above\n", wrong);
    } else if (!options_.json && options_.kind != Kind::kPairs) {
      std::printf(options_.check ? "# every element is right on every rank\n" : "# not checked\n");
    }
    std::fflush(stdout);
  }

 private:
  void AddJson(const char* prefix, size_t bytes, const Timing& timing) const {
    const double algorithm = Gigabytes(bytes, timing.seconds);
    std::printf(
        ", \"%stime_us\": %.3f, \"%salgbw_gbs\": %.6g, \"%sbusbw_gbs\": %.6g, \"%swrong\": "
        "%" PRId64,
        prefix, timing.seconds * 1e6, prefix, algorithm, prefix,
        algorithm * BusFactor(options_.kind), prefix, timing.wrong);
  }
  void AddCells(size_t bytes, const Timing& timing) const {
    const double algorithm = Gigabytes(bytes, timing.seconds);
    std::printf(" %12.2f %9.3f %9.3f %7" PRId64, timing.seconds * 1e6, algorithm,
                algorithm * BusFactor(options_.kind), timing.wrong);
  }

  // At the beginning of a row, so that each has a whole line at once.
  const char* Comma() {
    const bool first = first_;
    first_ = false;
    return first ? " " : ",";
  }

  const Options& options_;
  const Memory memory_;
  const Manner manner_;
  const bool speaks_;
  bool first_ = true;
};

// kWrong: an element, or the sizes.
enum class Verdict { kRight, kWrong, kFailed };

bool OnNccl() { return std::strcmp(dtrain_backend(), "nccl") == 0; }

Memory MemoryOf(const Options& options) {
  if (options.memory != Memory::kAuto) return options.memory;
  return OnNccl() ? Memory::kDevice : Memory::kPlain;
}

Manner MannerOf(const Options& options) {
  if (options.manner != Manner::kAuto) return options.manner;
  return OnNccl() && !options.in_place ? Manner::kPipelined : Manner::kLatency;
}

// Calls that travel as one are not what a table of sizes is about. Before dtrain_init.
void TurnFusionOff() {
  if (std::getenv("HOROVOD_FUSION_THRESHOLD") == nullptr) {
    setenv("DTRAIN_FUSION_THRESHOLD", "0", /*overwrite=*/0);
  }
}

// Every rank finds the same sizes, on which all agree; none when they may not be left out. False
// after a failed call.
bool FindSizes(const Options& options, std::vector<size_t>& sizes) {
  sizes = SizesOf(options);
  std::ifstream file("/proc/meminfo");
  const std::string meminfo{std::istreambuf_iterator<char>(file), {}};
  const auto local = static_cast<size_t>(dtrain_local_size());
  auto room = static_cast<int64_t>(
      std::min<size_t>(RoomPerRank(AvailableBytes(meminfo), local), INT64_MAX));
  if (!Ok(dtrain_allreduce(&room, &room, 1, DTRAIN_INT64, DTRAIN_MIN))) return false;
  const std::string trouble =
      LeaveOutTooLarge(options, ElementBytes(options.type), static_cast<size_t>(dtrain_size()),
                       static_cast<size_t>(room), sizes);
  if (trouble.empty()) return true;
  if (!options.fit) sizes.clear();
  if (dtrain_rank() != 0) return true;
  std::fprintf(stderr, "dtrain-allreduce: %s%s\n", trouble.c_str(),
               options.fit ? "; left out" : "; use smaller --sizes");
  return true;
}

// The whole table. kRight and kWrong are the same on every rank, kFailed is this rank's alone.
template <typename T>
Verdict RunSizes(const Options& options, Report& report) {
  std::vector<size_t> sizes;
  if (!FindSizes(options, sizes)) return Verdict::kFailed;
  if (sizes.empty()) return Verdict::kWrong;
  const Memory memory = MemoryOf(options);
  dtrain_group alone = nullptr;
  if (memory == Memory::kDevice && !Ok(dtrain_group_create(dtrain_rank(), 0, &alone))) {
    return Verdict::kFailed;
  }
  Bench<T> bench(options);
  if (!bench.Prepare(*std::max_element(sizes.begin(), sizes.end()), memory, alone)) {
    return Verdict::kFailed;
  }
  report.Begin();
  int64_t wrong = 0;
  for (const size_t bytes : sizes) {
    Row row;
    if (!bench.Measure(bytes, MannerOf(options), row)) return Verdict::kFailed;
    wrong += row.timing.wrong + (row.in_place ? row.in_place->wrong : 0);
    report.Add(row);
  }
  report.End(wrong);
  return wrong == 0 ? Verdict::kRight : Verdict::kWrong;
}

Verdict RunPairs(const Options& options, Report& report) {
  report.Begin();
  std::vector<PairRow> rows;
  if (!MeasurePairs(options, MemoryOf(options), rows)) return Verdict::kFailed;
  for (const PairRow& row : rows) report.Add(row);
  report.End(0);
  return Verdict::kRight;
}

Verdict Run(const Options& options) {
  Report report(options, MemoryOf(options), MannerOf(options));
  if (options.kind == Kind::kPairs) return RunPairs(options, report);
  switch (options.type) {
    case DTRAIN_INT32:
      return RunSizes<int32_t>(options, report);
    case DTRAIN_INT64:
      return RunSizes<int64_t>(options, report);
    case DTRAIN_FLOAT16:
      return RunSizes<Float16>(options, report);
    case DTRAIN_BFLOAT16:
      return RunSizes<Bfloat16>(options, report);
    case DTRAIN_FLOAT64:
      return RunSizes<double>(options, report);
    default:
      return RunSizes<float>(options, report);
  }
}

int Main(int argc, char** argv) {
  const auto parsed = ParseOptions(argc, argv);
  if (const auto* wrong = std::get_if<std::string>(&parsed)) {
    std::fprintf(stderr, "dtrain-allreduce: %s; see dtrain-allreduce --help\n", wrong->c_str());
    return 2;
  }
  const Options& options = std::get<Options>(parsed);
  if (options.help) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  TurnFusionOff();
  if (!Ok(dtrain_init(nullptr))) return 1;
  Verdict verdict = Verdict::kFailed;
  try {
    verdict = Run(options);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr,
                 "dtrain-allreduce: rank %d: no memory for the buffers; use smaller sizes\n",
                 dtrain_rank());
  }
  // A failed rank leaves without a goodbye, so that the launcher stops the others. Wrong elements
  // are known to all: they leave together, or the launcher would end rank 0 before it has spoken.
  if (verdict == Verdict::kFailed || !Ok(dtrain_finalize())) return 1;
  return verdict == Verdict::kRight ? 0 : 1;
}

}  // namespace
}  // namespace dtrain::allreduce

int main(int argc, char** argv) { return dtrain::allreduce::Main(argc, argv); }
