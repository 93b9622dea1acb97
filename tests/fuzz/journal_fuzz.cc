// SPDX-License-Identifier: Apache-2.0
// The journal of a job. With a first byte of 0 the rest is the file; else it is a script of
// records, which are framed as a launcher does: what is behind a right CRC is read, too.
#include <string>

#include "launcher/journal/frame.h"
#include "launcher/journal/records.h"
#include "launcher/journal/replay.h"
#include "tests/fuzz/expect.h"
#include "tests/fuzz/messages.h"

namespace {

using dtrain::v1::JournalRecord;

std::string Framed(absl::string_view bytes) {
  std::string file;
  JournalRecord record = dtrain::journal::Header("job", "1.0");
  DTRAIN_CHECK(dtrain::journal::AppendRecord(record, true, &file).ok());
  dtrain::fuzz::Script script(bytes);
  for (dtrain::fuzz::Script::Step step; script.Next(step);) {
    if (!record.ParseFromArray(step.message.data(), static_cast<int>(step.message.size())))
      continue;
    if (record.kind_case() == JournalRecord::KIND_NOT_SET) continue;
    DTRAIN_CHECK(dtrain::journal::AppendRecord(record, (step.what & 1) != 0, &file).ok());
  }
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view rest = dtrain::fuzz::Text(data + 1, size - 1);
  const std::string file = data[0] == 0 ? std::string(rest) : Framed(rest);
  const auto read = dtrain::journal::Read(file);
  if (!read.ok()) {
    dtrain::fuzz::ExpectPrintable(read.status());
    return 0;
  }
  DTRAIN_CHECK(read->good_bytes <= file.size());
  // What is cut is not missed.
  const auto whole = dtrain::journal::Read(absl::string_view(file).substr(0, read->good_bytes));
  DTRAIN_CHECK(whole.ok() && whole->good_bytes == read->good_bytes);
  DTRAIN_CHECK(whole->records == read->records);
  // And a snapshot is as good as all records.
  dtrain::v1::JournalState restored;
  DTRAIN_CHECK(dtrain::journal::Apply(dtrain::journal::Snapshot(read->state), restored).ok());
  DTRAIN_CHECK(restored.SerializeAsString().size() == read->state.SerializeAsString().size());
  return 0;
}
