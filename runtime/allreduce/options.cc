// SPDX-License-Identifier: Apache-2.0
#include "runtime/allreduce/options.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

namespace dtrain::allreduce {

const char kUsage[] =
    R"(dtrain-allreduce: checks and times the collectives of libdtrain over a range of sizes.

Run it as the workers of a job:  dtrain launch -np 4 -- dtrain-allreduce
or:                              mpiexec.hydra -n 4 dtrain-allreduce
dtrain bench does so, too, and draws the result.

  --sizes N,N...   sizes of the data of one rank, with K, M or G for binary units; or a range:
  --min-bytes N    smallest size (default 4)
  --max-bytes N    largest size (default 64M)
  --factor N       each size is N times the one before (default 2)
  --collective C   allreduce (default), broadcast, allgather, reduce_scatter, alltoall, reduce, or
                   p2p: latency and bandwidth from each rank to each other one; pairs take turns,
                   or, with more than 16 ranks, as many disjoint pairs as possible at a time
  --pipelined      time calls back to back, as nccl-tests does (default on NCCL); --pipelined=off:
                   one call at a time, after a barrier (default on CPUs)
  --iterations N   timed runs per size (default: 20 pipelined, else as many as fit in 0.2 s, at least 3)
  --warmup N       runs before them (default: 5 pipelined, else 2)
  --type T         int32, int64, float16, bfloat16, float32 or float64 (default float32)
  --op O           sum, avg, min, max or prod (default sum)
  --alloc M        plain: memory of the process (default on CPUs); shared: dtrain_alloc;
                   device: GPU memory (default on NCCL)
  --in-place       input and output are the same buffer; one call at a time only, because a pipelined
                   run measures both
  --check on|off   compare every element with the right result (default on)
  --fit            skip sizes for which the machines lack memory, instead of failing
  --json           an array of objects, one a line, instead of the table
  --help           this text

Rank 0 prints, per size: the time, the algorithm bandwidth (size / time), the bus bandwidth (that
times 2(n-1)/n for an all-reduce among n ranks, which a perfect ring keeps equal to the speed of the
links) and the number of wrong elements on all ranks. The time is the median over the timed runs of
the slowest rank's time or, pipelined, the mean over the timed runs and the ranks, out of place and
in place. Of an allgather, a reduce_scatter or an alltoall, the size is that of the larger buffer.

Small asynchronous all-reduces may travel as one. This program turns that off, unless
DTRAIN_FUSION_THRESHOLD or HOROVOD_FUSION_THRESHOLD is set.

Exit code: 0, 1 if an element was wrong on any rank or a call failed, 2 for a wrong command line.
)";

namespace {

constexpr std::pair<const char*, Kind> kKinds[] = {{"allreduce", Kind::kAllreduce},
                                                   {"broadcast", Kind::kBroadcast},
                                                   {"allgather", Kind::kAllgather},
                                                   {"reduce_scatter", Kind::kReduceScatter},
                                                   {"alltoall", Kind::kAlltoall},
                                                   {"reduce", Kind::kReduce},
                                                   {"p2p", Kind::kPairs}};
constexpr std::pair<const char*, dtrain_type> kTypes[] = {
    {"int32", DTRAIN_INT32},       {"int64", DTRAIN_INT64},     {"float16", DTRAIN_FLOAT16},
    {"bfloat16", DTRAIN_BFLOAT16}, {"float32", DTRAIN_FLOAT32}, {"float64", DTRAIN_FLOAT64}};
constexpr std::pair<const char*, dtrain_op> kOps[] = {{"sum", DTRAIN_SUM},
                                                      {"avg", DTRAIN_AVG},
                                                      {"min", DTRAIN_MIN},
                                                      {"max", DTRAIN_MAX},
                                                      {"prod", DTRAIN_PROD}};
constexpr std::pair<const char*, Memory> kMemories[] = {{"auto", Memory::kAuto},
                                                        {"plain", Memory::kPlain},
                                                        {"shared", Memory::kShared},
                                                        {"device", Memory::kDevice}};
constexpr std::pair<const char*, Manner> kPipelined[] = {{"on", Manner::kPipelined},
                                                         {"off", Manner::kLatency}};
constexpr std::pair<const char*, Manner> kManners[] = {
    {"auto", Manner::kAuto}, {"latency", Manner::kLatency}, {"pipelined", Manner::kPipelined}};
constexpr std::pair<const char*, bool> kSwitch[] = {{"on", true}, {"off", false}};

template <typename T, size_t N>
bool Choose(std::string_view text, const std::pair<const char*, T> (&choices)[N], T& value) {
  for (const auto& [name, choice] : choices) {
    if (text != name) continue;
    value = choice;
    return true;
  }
  return false;
}

template <typename T, size_t N>
const char* Named(T value, const std::pair<const char*, T> (&choices)[N]) {
  for (const auto& [name, choice] : choices) {
    if (value == choice) return name;
  }
  return "?";
}

bool ParseNumber(std::string_view text, uint64_t lowest, uint64_t highest, uint64_t& value) {
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && rest == text.data() + text.size() && value >= lowest &&
         value <= highest;
}

bool ParseBytes(std::string_view text, size_t& bytes) {
  constexpr std::string_view kUnits = "KMG";
  int shift = 0;
  if (!text.empty() && kUnits.find(text.back()) != std::string_view::npos) {
    shift = 10 * (static_cast<int>(kUnits.find(text.back())) + 1);
    text.remove_suffix(1);
  }
  uint64_t number = 0;
  if (!ParseNumber(text, 1, (uint64_t{1} << 40) >> shift, number)) return false;
  bytes = static_cast<size_t>(number) << shift;
  return true;
}

bool ParseSizes(std::string_view text, std::vector<size_t>& sizes) {
  sizes.clear();
  while (true) {
    const size_t comma = std::min(text.find(','), text.size());
    if (!ParseBytes(text.substr(0, comma), sizes.emplace_back())) return false;
    if (comma == text.size()) return true;
    text.remove_prefix(comma + 1);
  }
}

bool ParseCount(std::string_view text, int lowest, int& count) {
  uint64_t number = 0;
  if (!ParseNumber(text, static_cast<uint64_t>(lowest), 1'000'000, number)) return false;
  count = static_cast<int>(number);
  return true;
}

// Sets option `name`; false when it has no such value, nullopt when there is no such option.
std::optional<bool> Set(Options& options, std::string_view name, std::string_view value) {
  if (name == "--sizes") return ParseSizes(value, options.sizes);
  if (name == "--min-bytes") return ParseBytes(value, options.min_bytes);
  if (name == "--max-bytes") return ParseBytes(value, options.max_bytes);
  if (name == "--factor") {
    uint64_t factor = 0;
    const bool good = ParseNumber(value, 2, 1 << 20, factor);
    options.factor = static_cast<size_t>(factor);
    return good;
  }
  if (name == "--collective") return Choose(value, kKinds, options.kind);
  if (name == "--iterations") return ParseCount(value, 1, options.iterations.emplace(1));
  if (name == "--warmup") return ParseCount(value, 0, options.warmup.emplace(0));
  if (name == "--pipelined") return Choose(value, kPipelined, options.manner);
  if (name == "--type") return Choose(value, kTypes, options.type);
  if (name == "--op") return Choose(value, kOps, options.op);
  if (name == "--alloc") return Choose(value, kMemories, options.memory);
  if (name == "--check") return Choose(value, kSwitch, options.check);
  return std::nullopt;
}

// An option without a value; false when there is none of this name.
bool SetSwitch(Options& options, std::string_view name) {
  if (name == "--json") return options.json = true;
  if (name == "--fit") return options.fit = true;
  if (name == "--in-place") return options.in_place = true;
  if (name == "--pipelined") {
    options.manner = Manner::kPipelined;
    return true;
  }
  return false;
}

std::optional<std::string> Contradiction(const Options& options) {
  if (options.min_bytes > options.max_bytes) return "--min-bytes exceeds --max-bytes";
  const bool integer = options.type == DTRAIN_INT32 || options.type == DTRAIN_INT64;
  if (options.op == DTRAIN_AVG && integer) return "--op avg needs a float type";
  if (options.in_place && options.kind != Kind::kAllreduce) {
    return "--in-place is for --collective allreduce";
  }
  if (options.in_place && options.manner == Manner::kPipelined) {
    return "--in-place and --pipelined cannot be combined: a pipelined run measures both";
  }
  return std::nullopt;
}

}  // namespace

std::variant<Options, std::string> ParseOptions(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    std::string_view name = argv[i];
    if (name == "--help" || name == "-h") {
      options.help = true;
      return options;
    }
    if (SetSwitch(options, name)) continue;
    std::string_view value;
    const size_t equals = name.find('=');
    const bool joined = equals != std::string_view::npos;
    if (joined) {
      value = name.substr(equals + 1);
      name = name.substr(0, equals);
    } else if (i + 1 < argc) {
      value = argv[i + 1];
    }
    const auto good = Set(options, name, value);
    if (!good) return "unknown option '" + std::string(name) + "'";
    if (!*good) return "'" + std::string(value) + "' is not a value of " + std::string(name);
    if (!joined) ++i;
  }
  if (const auto wrong = Contradiction(options)) return *wrong;
  return options;
}

std::vector<size_t> SizesOf(const Options& options) {
  if (!options.sizes.empty()) return options.sizes;
  std::vector<size_t> sizes;
  for (size_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes *= options.factor) {
    sizes.push_back(bytes);
  }
  return sizes;
}

const char* NameOf(Kind kind) { return Named(kind, kKinds); }
const char* NameOf(Memory memory) { return Named(memory, kMemories); }
const char* NameOf(Manner manner) { return Named(manner, kManners); }
const char* NameOf(dtrain_type type) { return Named(type, kTypes); }
const char* NameOf(dtrain_op op) { return Named(op, kOps); }

size_t ElementBytes(dtrain_type type) {
  switch (type) {
    case DTRAIN_FLOAT16:
    case DTRAIN_BFLOAT16:
      return 2;
    case DTRAIN_INT64:
    case DTRAIN_FLOAT64:
      return 8;
    default:
      return 4;
  }
}

bool Reduces(Kind kind) {
  return kind == Kind::kAllreduce || kind == Kind::kReduceScatter || kind == Kind::kReduce;
}

}  // namespace dtrain::allreduce
