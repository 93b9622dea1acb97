// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "dtrain/v1/job.pb.h"
#include "launcher/output/line_splitter.h"
#include "launcher/output/standing_text.h"
#include "launcher/output/traceback_fold.h"

namespace dtrain::output {

// Turns the bytes of many ranks into what one terminal, pipe or file shows: whole lines, which
// never mix, and the lines that stand: progress bars and prompts, which have no end yet. At the
// bottom of a terminal those are drawn as rows of their own, below the lines that scroll; elsewhere
// their latest state is written once a second. Pure.
class Display {
 public:
  enum class Kind {
    kTerminal,
    kPlainTerminal,  // one that cannot move its cursor (TERM=dumb)
    kPipe,
    kFile,  // nobody waits for the end of a line in it
  };
  struct Size {
    size_t columns = 80;
    size_t rows = 24;
  };
  struct Moment {
    TimePoint now;
    std::string time;  // in front of each line; empty: nothing
  };
  using StreamId = std::pair<uint32_t, int>;  // rank, v1::StreamKind

  // Until a line that is not finished is shown, on a terminal and elsewhere.
  static constexpr Duration kQuiet = std::chrono::milliseconds(100);
  static constexpr Duration kElsewhere = std::chrono::seconds(1);
  // Between two drawings while lines scroll by.
  static constexpr Duration kFrame = std::chrono::milliseconds(33);

  explicit Display(Kind kind) : kind_(kind) {}

  // Before the first Add, and when nothing stands: how many share it; whether tracebacks that
  // several write are shown once; whether bytes pass as they come, without any prefix.
  struct Sharing {
    uint32_t ranks = 2;
    bool folds = false;
    bool passes = false;
    bool of_another = false;  // another user's job: on a terminal all that is not text is shown
  };
  void SetSharing(Sharing sharing) { sharing_ = sharing; }

  void Add(StreamId id, absl::FunctionRef<std::string()> prefix, absl::string_view bytes,
           const Moment& moment);
  // Its bytes broke off on the way: what has no end may have one. Until the next Add its line does
  // not stand, nor change if it does.
  void Cut(StreamId id);
  // A line without an end is finished.
  void End(StreamId id, const Moment& moment);
  void EndAll(const Moment& moment);
  // dtrain's own words: whole lines.
  void Say(absl::string_view text);
  // dtrain's live line, on a terminal only. Any other output takes it away.
  void SetStatus(absl::string_view line);
  // The user has ended a line at the terminal, which has shown it behind the prompt that stood.
  void UserEndedLine();

  // What is to be written now. Call it after each of the above and at deadline(). `may_draw`: not
  // where the terminal has not taken what it got before.
  std::string Take(const Moment& moment, absl::FunctionRef<Size()> size, bool may_draw = true);
  TimePoint deadline() const;
  // Bytes that Take holds back.
  size_t held() const { return lines_.size(); }

 private:
  struct Stream {
    std::string prefix;
    LineSplitter lines;
    TimePoint since = kNever;              // when the unfinished line began
    bool cut = false;                      // see Cut
    std::unique_ptr<StandingText> stands;  // once it has stood for a while
    // Where nothing is drawn: before it nothing of it is written, its rows as they were last, and
    // whether they have changed.
    TimePoint next = TimePoint::min();
    std::vector<std::string> written;
    bool changed = false;
  };
  struct Row {
    StreamId id;
    const Stream* stream;
    size_t row;
  };

  bool draws() const { return kind_ == Kind::kTerminal; }
  Duration patience() const;
  bool is_terminal() const { return kind_ == Kind::kTerminal || kind_ == Kind::kPlainTerminal; }
  bool Folds(StreamId id) const;
  void Stand(Stream& stream);
  void Clear(StreamId id, Stream& stream);
  void Expire(const Moment& moment);
  void TakeLine(StreamId id, Stream& stream, absl::string_view line, const Moment& moment);
  void AppendLine(const Stream& stream, absl::string_view line, const Moment& moment);
  void AppendFolded(const TracebackFold::Lines& lines, const Moment& moment);
  void TellFolded();
  void DropStatus();
  void Flush(StreamId id, Stream& stream, const Moment& moment);
  void EndTail();
  bool IsWritten(StreamId id, Stream& stream, absl::string_view line);
  void WriteStanding(StreamId id, Stream& stream, const Moment& moment);
  std::vector<Row> StandingRows() const;
  std::string TextOf(const Row& row, size_t columns, const std::string& time) const;
  std::vector<std::string> Texts(Size size, const std::string& time);
  std::string Erase();
  std::string Draw(Size size, const std::string& time);

  const Kind kind_;
  Sharing sharing_;
  std::map<StreamId, Stream> streams_;
  std::set<StreamId> unfinished_;  // those with a line that has no end
  size_t standing_ = 0;            // and those of them that are shown as such
  TimePoint look_ = kNever;        // when one of them may have to be
  TracebackFold fold_;
  std::string lines_;             // what is not written yet
  bool mid_line_ = false;         // behind it the line has no end
  std::optional<StreamId> tail_;  // whose line that is

  // Of a terminal:
  std::string status_;
  std::string drawn_;  // what stands at the bottom, as it is there
  size_t drawn_rows_ = 0;
  std::optional<StreamId> prompt_;  // whose line the cursor stands behind
  std::string prompt_text_;
  bool changed_ = false;    // something else should stand there
  bool leftovers_ = false;  // from the cursor's row on there may be what nobody needs
  TimePoint last_ = TimePoint::min();
};

}  // namespace dtrain::output
