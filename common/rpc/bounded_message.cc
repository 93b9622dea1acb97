// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/bounded_message.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace dtrain::rpc {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::MessageFactory;

// A pointer to it in an array, and what the allocator adds.
constexpr size_t kObject = 24;
constexpr size_t kString = sizeof(std::string) + kObject;
// Its place among the fields that are not known.
constexpr size_t kUnknown = 16;
// Deeper than any message of ours; protobuf takes a hundred.
constexpr int kDeepest = 32;

// Of the wire format.
enum Wire : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// What an object has before it has any fields. Prototypes live as long as the process.
size_t SizeOf(const Descriptor& type) {
  return MessageFactory::generated_factory()->GetPrototype(&type)->SpaceUsedLong();
}

bool IsText(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_STRING;
}

class Scan {
 public:
  Scan(google::protobuf::io::ZeroCopyInputStream& bytes, size_t most) : in_(&bytes), most_(most) {}
  // False: malformed. Stops early above the limit.
  bool Message(const Descriptor& type, int depth) {
    if (depth > kDeepest) return false;
    while (size_ <= most_) {
      const uint32_t tag = in_.ReadTag();
      if (tag == 0) return in_.ConsumedEntireMessage();
      if (!Field(type.FindFieldByNumber(static_cast<int>(tag >> 3)), tag & 7, depth)) return false;
    }
    return true;
  }
  size_t size() const { return size_; }

 private:
  bool Field(const FieldDescriptor* field, uint32_t wire, int depth) {
    uint64_t number = 0;
    uint32_t short_number = 0;
    if (wire == kBytes) return Bytes(field, depth);
    size_ += field == nullptr ? kUnknown : field->is_repeated() ? sizeof(uint64_t) : 0;
    if (wire == kVarint) return in_.ReadVarint64(&number);
    if (wire == kFixed64) return in_.ReadLittleEndian64(&number);
    return wire == kFixed32 && in_.ReadLittleEndian32(&short_number);  // groups: proto3 has none
  }
  bool Bytes(const FieldDescriptor* field, int depth) {
    int length = 0;
    if (!in_.ReadVarintSizeAsInt(&length)) return false;
    const auto bytes = static_cast<size_t>(length);
    if (field == nullptr || IsText(*field)) {
      size_ += kString + bytes + (field == nullptr ? kUnknown : 0);
      return in_.Skip(length);
    }
    const Descriptor* type = field->message_type();
    if (type == nullptr) {  // packed numbers, of a byte at least
      size_ += bytes * sizeof(uint64_t);
      return in_.Skip(length);
    }
    size_ += SizeOf(*type) + kObject;
    const auto limit = in_.PushLimit(length);
    // Bytes that end before it does are not an end to the stream.
    const bool fine = Message(*type, depth + 1) && (size_ > most_ || in_.BytesUntilLimit() == 0);
    in_.PopLimit(limit);
    return fine;
  }

  google::protobuf::io::CodedInputStream in_;
  const size_t most_;
  size_t size_ = 0;
};

}  // namespace

absl::StatusOr<size_t> ParsedSize(const Descriptor& type,
                                  google::protobuf::io::ZeroCopyInputStream& bytes, size_t most) {
  Scan scan(bytes, most);
  if (!scan.Message(type, 0)) {
    return absl::InvalidArgumentError(absl::StrCat("these bytes are not a ", type.full_name()));
  }
  return scan.size();
}

namespace {

absl::Status Malformed(const Descriptor& type) {
  return absl::InvalidArgumentError(absl::StrCat("these bytes are not a ", type.full_name()));
}

absl::Status CheckParsed(const Descriptor& type, google::protobuf::io::ZeroCopyInputStream& bytes,
                         size_t length, size_t most_parsed) {
  auto size = ParsedSize(type, bytes, most_parsed);
  if (!size.ok()) return size.status();
  if (*size <= most_parsed) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("a ", type.full_name(), " of ", length,
                                                   " bytes that would occupy more than ",
                                                   most_parsed, " in memory"));
}

}  // namespace

absl::Status Parse(grpc::ByteBuffer& bytes, size_t most_bytes, google::protobuf::Message* out,
                   size_t most_parsed) {
  const Descriptor& type = *out->GetDescriptor();
  if (bytes.Length() > most_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("a ", type.full_name(), " of ", bytes.Length(),
                                                     " bytes; ", most_bytes, " are taken at most"));
  }
  if (bytes.Valid()) {
    grpc::ProtoBufferReader once(&bytes);
    if (!once.status().ok()) return Malformed(type);
    absl::Status fits = CheckParsed(type, once, bytes.Length(), most_parsed);
    if (!fits.ok()) return fits;
  }
  grpc::ProtoBufferReader again(&bytes);
  if (!again.status().ok() || !out->ParseFromZeroCopyStream(&again)) return Malformed(type);
  return absl::OkStatus();
}

absl::Status Parse(absl::string_view bytes, google::protobuf::Message* out, size_t most_parsed) {
  const Descriptor& type = *out->GetDescriptor();
  const int length = static_cast<int>(bytes.size());
  google::protobuf::io::ArrayInputStream once(bytes.data(), length);
  absl::Status fits = CheckParsed(type, once, bytes.size(), most_parsed);
  if (!fits.ok()) return fits;
  return out->ParseFromArray(bytes.data(), length) ? absl::OkStatus() : Malformed(type);
}

}  // namespace dtrain::rpc
