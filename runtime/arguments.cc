// SPDX-License-Identifier: Apache-2.0
#include "runtime/arguments.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "runtime/base/types.h"

namespace dtrain::runtime {
namespace {

Error Bad(std::string message) { return {DTRAIN_ERROR_INVALID_ARGUMENT, std::move(message)}; }

// Sets `bytes` to the size of `count` elements, which must fit `copies` times into memory.
MaybeError CheckElements(size_t count, dtrain_type type, int copies, size_t& bytes) {
  if (TypeName(type) == nullptr) {
    return Bad("unknown type " + std::to_string(static_cast<int>(type)));
  }
  const size_t element = ElementSize(type);
  if (element == 0) {
    return Error{DTRAIN_ERROR_UNSUPPORTED,
                 std::string("type ") + TypeName(type) + " is not supported yet"};
  }
  if (count > SIZE_MAX / 2 / element / static_cast<size_t>(copies)) {
    return Bad("a count of " + std::to_string(count) + " elements do not fit in memory");
  }
  bytes = count * element;
  return std::nullopt;
}

MaybeError CheckOp(dtrain_type type, dtrain_op op) {
  if (OpName(op) == nullptr) {
    return Bad("unknown operation " + std::to_string(static_cast<int>(op)));
  }
  const bool whole = type == DTRAIN_INT32 || type == DTRAIN_INT64;
  if (type != DTRAIN_BYTE && !(op == DTRAIN_AVG && whole)) return std::nullopt;
  return Error{DTRAIN_ERROR_UNSUPPORTED,
               std::string(OpName(op)) + " of " + TypeName(type) + " is not supported"};
}

MaybeError CheckRoot(int root, const Place& place) {
  if (root >= 0 && root < place.size) return std::nullopt;
  return Bad("root " + std::to_string(root) + " is not one of the " + std::to_string(place.size) +
             " ranks, which are numbered from 0");
}

// `input_at` and `output_at` are the offsets at which the smaller buffer lies in the larger one
// for an operation in place.
MaybeError CheckBuffers(const void* input, size_t input_bytes, const void* output,
                        size_t output_bytes, size_t input_at, size_t output_at) {
  if (input_bytes == 0) return std::nullopt;
  if (input == nullptr || output == nullptr) {
    return Bad("a buffer is NULL although count is not 0");
  }
  const auto in = reinterpret_cast<uintptr_t>(input);
  const auto out = reinterpret_cast<uintptr_t>(output);
  const bool apart = in + input_bytes <= out || out + output_bytes <= in;
  if (apart || in + output_at == out + input_at) return std::nullopt;
  return Bad("input and output overlap, but not in place");
}

}  // namespace

Result<Collective> CheckedAllreduce(const Place&, const void* input, void* output, size_t count,
                                    dtrain_type type, dtrain_op op) {
  size_t bytes = 0;
  if (MaybeError error = CheckElements(count, type, 1, bytes)) return *error;
  if (MaybeError error = CheckOp(type, op)) return *error;
  if (MaybeError error = CheckBuffers(input, bytes, output, bytes, 0, 0)) return *error;
  return Collective{Collective::Kind::kAllreduce, 0, input, output, count, type, op, 0, nullptr};
}

Result<Collective> CheckedBroadcast(const Place& place, void* buffer, size_t count,
                                    dtrain_type type, int root) {
  size_t bytes = 0;
  if (MaybeError error = CheckElements(count, type, 1, bytes)) return *error;
  if (MaybeError error = CheckRoot(root, place)) return *error;
  if (MaybeError error = CheckBuffers(buffer, bytes, buffer, bytes, 0, 0)) return *error;
  return Collective{
      Collective::Kind::kBroadcast, 0, buffer, buffer, count, type, DTRAIN_SUM, root, nullptr};
}

Result<Collective> CheckedAllgather(const Place& place, const void* input, void* output,
                                    size_t count, dtrain_type type) {
  size_t bytes = 0;
  if (MaybeError error = CheckElements(count, type, place.size, bytes)) return *error;
  const size_t all = bytes * static_cast<size_t>(place.size);
  const size_t own = bytes * static_cast<size_t>(place.rank);
  if (MaybeError error = CheckBuffers(input, bytes, output, all, own, 0)) return *error;
  return Collective{
      Collective::Kind::kAllgather, 0, input, output, count, type, DTRAIN_SUM, 0, nullptr};
}

Result<Collective> CheckedReduceScatter(const Place& place, const void* input, void* output,
                                        size_t count, dtrain_type type, dtrain_op op) {
  size_t bytes = 0;
  if (MaybeError error = CheckElements(count, type, place.size, bytes)) return *error;
  if (MaybeError error = CheckOp(type, op)) return *error;
  const size_t all = bytes * static_cast<size_t>(place.size);
  const size_t own = bytes * static_cast<size_t>(place.rank);
  if (MaybeError error = CheckBuffers(input, all, output, bytes, 0, own)) return *error;
  return Collective{
      Collective::Kind::kReduceScatter, 0, input, output, count, type, op, 0, nullptr};
}

Result<Collective> CheckedAlltoall(const Place& place, const void* input, void* output,
                                   size_t count, dtrain_type type) {
  size_t bytes = 0;
  if (MaybeError error = CheckElements(count, type, place.size, bytes)) return *error;
  const size_t all = bytes * static_cast<size_t>(place.size);
  if (MaybeError error = CheckBuffers(input, all, output, all, 0, 0)) return *error;
  return Collective{
      Collective::Kind::kAlltoall, 0, input, output, count, type, DTRAIN_SUM, 0, nullptr};
}

Result<Operation> CheckedRows(const Place& place, Collective::Kind kind, const void* input,
                              const uint64_t* rows, size_t length, dtrain_type type,
                              dtrain_allocate allocate, void* context) {
  if (rows == nullptr) return Bad("rows is NULL");
  if (allocate == nullptr) return Bad("allocate is NULL");
  const bool to_all = kind == Collective::Kind::kAllgather;
  Operation operation;
  operation.rows.assign(rows, rows + (to_all ? 1 : place.size));
  operation.length = length;
  size_t elements = 0;
  for (const uint64_t each : operation.rows) {
    if (length > 0 && each > (SIZE_MAX / 2 - elements) / length)
      return Bad("rows do not fit in memory");
    elements += each * length;
  }
  size_t bytes = 0;
  if (MaybeError error = CheckElements(elements, type, place.size, bytes)) return *error;
  if (elements > 0 && input == nullptr) return Bad("a buffer is NULL although there are rows");
  operation.what.kind = kind;
  operation.what.type = type;
  operation.what.input = input;
  operation.shape = std::string(kRowsOf) + std::to_string(length) + " " + TypeName(type);
  operation.allocate = [allocate, context](const uint64_t* all) { return allocate(context, all); };
  return operation;
}

Result<Collective> CheckedReduce(const Place& place, const void* input, void* output, size_t count,
                                 dtrain_type type, dtrain_op op, int root) {
  size_t bytes = 0;
  if (MaybeError error = CheckElements(count, type, 1, bytes)) return *error;
  if (MaybeError error = CheckOp(type, op)) return *error;
  if (MaybeError error = CheckRoot(root, place)) return *error;
  const void* target = place.rank == root || output != nullptr ? output : input;
  if (MaybeError error = CheckBuffers(input, bytes, target, bytes, 0, 0)) return *error;
  return Collective{Collective::Kind::kReduce, 0, input, output, count, type, op, root, nullptr};
}

uint32_t IdOf(dtrain_group group) {
  const auto number = reinterpret_cast<uintptr_t>(group);
  return number > UINT32_MAX ? UINT32_MAX : static_cast<uint32_t>(number);
}

bool CopyKnown(const void* given, void* ours, size_t our_size) {
  constexpr size_t kLargest = 4096;
  const char* bytes = static_cast<const char*>(given);
  size_t size = 0;
  std::memcpy(&size, given, sizeof(size));
  if (size < sizeof(size_t) || size > kLargest) return false;
  const size_t known = std::min(size, our_size);
  if (!std::all_of(bytes + known, bytes + size, [](char c) { return c == 0; })) return false;
  std::memcpy(ours, given, known);
  return true;
}

}  // namespace dtrain::runtime
