// SPDX-License-Identifier: Apache-2.0
#include "launcher/journal/records.h"

#include <google/protobuf/arena.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/text.h"
#include "launcher/journal/frame.h"
#include "launcher/journal/replay.h"

namespace dtrain::journal {
namespace {

constexpr char kMagic[] = "dtrain journal";
constexpr uint8_t kBeginsBatch = 0x80;  // of a frame's type

// Takes a number off the front, as Protobuf writes it.
std::optional<uint64_t> TakeVarint(absl::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const auto byte = static_cast<uint8_t>(bytes.front());
    bytes.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if ((byte & 0x80) == 0) return value;
  }
  return std::nullopt;
}

uint8_t KindOf(const Frame& frame) { return frame.type & ~kBeginsBatch; }

// A record is one field, which has the number of the frame's type and fills the frame. So the size,
// which the CRC does not cover, is checked, too.
bool IsRecord(const Frame& frame) {
  constexpr uint64_t kBytesField = 2;
  absl::string_view rest = frame.payload;
  const std::optional<uint64_t> tag = TakeVarint(rest);
  const std::optional<uint64_t> size = TakeVarint(rest);
  return KindOf(frame) != 0 && tag == (uint64_t{KindOf(frame)} << 3 | kBytesField) &&
         size == rest.size();
}

// Counts the bytes last: where damage is searched for frames, most places are none.
std::optional<Frame> RecordAt(absl::string_view bytes) {
  std::optional<Frame> frame = CutFrame(bytes);
  return frame && IsRecord(*frame) && frame->IsCorrect() ? frame : std::nullopt;
}

// Whether a record behind the damage at the front says that it had been synced.
bool WasSynced(absl::string_view bytes) {
  for (size_t at = 1; at + kFrameHead < bytes.size(); ++at) {
    const std::optional<Frame> frame = RecordAt(bytes.substr(at));
    if (frame && (frame->type & kBeginsBatch) != 0) return true;
  }
  return false;
}

absl::Status CheckHeader(const v1::JournalHeader& header) {
  if (header.magic() != kMagic) return absl::DataLossError("it is not a journal of dtrain");
  if (header.version() > kVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("a newer dtrain (", Escape(header.build()), ") has written it, in version ",
                     header.version(), " of the format; this one reads up to version ", kVersion));
  }
  return absl::OkStatus();
}

absl::Status CheckSize(const std::string& payload) {
  if (payload.empty()) return absl::InvalidArgumentError("a journal record of no kind");
  if (payload.size() <= kMostPayload) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "a journal record of ", payload.size(), " bytes: at most ", kMostPayload, " are possible"));
}

absl::Status Located(const absl::Status& status, size_t at) {
  if (absl::IsFailedPrecondition(status)) return status;
  return absl::DataLossError(absl::StrCat("the record at byte ", at, ": ", status.message()));
}

}  // namespace

v1::JournalRecord Header(absl::string_view job_id, absl::string_view build) {
  v1::JournalRecord record;
  v1::JournalHeader& header = *record.mutable_header();
  header.set_magic(kMagic);
  header.set_version(kVersion);
  header.set_job_id(std::string(job_id));
  header.set_build(std::string(build));
  return record;
}

absl::Status CheckRecord(const v1::JournalRecord& record) {
  const std::string payload = record.SerializeAsString();
  if (absl::Status size = CheckSize(payload); !size.ok()) return size;
  if (v1::JournalRecord().ParseFromString(payload)) return absl::OkStatus();
  return absl::InvalidArgumentError("a journal record with a name that is not UTF-8");
}

absl::Status AppendRecord(const v1::JournalRecord& record, bool begins_batch, std::string* out) {
  const std::string payload = record.SerializeAsString();
  if (absl::Status size = CheckSize(payload); !size.ok()) return size;
  const auto kind = static_cast<uint8_t>(record.kind_case());
  AppendFrame(begins_batch ? kind | kBeginsBatch : kind, payload, out);
  return absl::OkStatus();
}

absl::StatusOr<Contents> Read(absl::string_view bytes) {
  Contents contents;
  // Records are made and freed all at once: half of the time would be spent on their parts.
  std::vector<char> room(64 << 10);
  google::protobuf::Arena arena(room.data(), room.size());
  size_t& at = contents.good_bytes;
  for (bool first = true; at < bytes.size(); first = false) {
    const std::optional<Frame> frame = RecordAt(bytes.substr(at));
    if (!frame) break;
    arena.Reset();
    auto& record = *google::protobuf::Arena::CreateMessage<v1::JournalRecord>(&arena);
    absl::Status legal;
    if (!record.ParseFromArray(frame->payload.data(), static_cast<int>(frame->payload.size()))) {
      legal = absl::DataLossError("it cannot be parsed");
    } else if (first != record.has_header()) {
      legal =
          absl::DataLossError(first ? "a journal must begin with its header" : "a second header");
    } else if (first) {
      contents.header = record.header();
      legal = CheckHeader(contents.header);
    } else if (record.kind_case() == v1::JournalRecord::KIND_NOT_SET) {
      ++contents.unknown;
    } else {
      legal = Apply(record, contents.state);
      ++contents.records;
    }
    if (!legal.ok()) return Located(legal, at);
    at += frame->size();
  }
  if (at < bytes.size() && WasSynced(bytes.substr(at))) {
    return absl::DataLossError(
        absl::StrCat("it is damaged at byte ", at, " of ", bytes.size(),
                     ": what is there had been written whole, as valid records behind it show"));
  }
  // Both were on disk before the job was accepted.
  if (at == 0) return absl::DataLossError("it has no header");
  if (contents.state.phase() == v1::JournalState::PHASE_NEW) {
    return absl::DataLossError("it does not say that a job was accepted");
  }
  if (at < bytes.size()) {
    contents.warnings.push_back(
        absl::StrCat("the last ", Count(bytes.size() - at, "byte"),
                     " were written only in part, before a crash, and are dropped"));
  }
  if (contents.unknown > 0) {
    contents.warnings.push_back(
        absl::StrCat(Count(contents.unknown, "record"), " of a newer dtrain (",
                     Escape(contents.header.build()), ") are not understood, and are ignored"));
  }
  return contents;
}

}  // namespace dtrain::journal
