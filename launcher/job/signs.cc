// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/signs.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace dtrain::job {
namespace {

// A traceback comes in pieces, and so does the rest of what a program says as it ends.
constexpr int64_t kGoesOnNanos = 2'000'000'000;
// Of a line; pieces of a sign stand at its beginning.
constexpr size_t kLongestLine = 4 << 10;
// Of a flood only the end is looked at: the last words are there.
constexpr size_t kMostOfChunk = 16 << 10;

struct SignRow {
  Sign sign;
  std::array<absl::string_view, 2> pieces;  // all of them, in this order
};

// The first that matches counts: a line about a lost peer may name the exception, too.
constexpr SignRow kSigns[] = {
    // Gloo, libuv and TCPStore
    {Sign::kPeerLost, {"Connection reset by peer", ""}},
    {Sign::kPeerLost, {"Connection reset by remote peer", ""}},
    {Sign::kPeerLost, {"Connection closed by peer", ""}},
    {Sign::kPeerLost, {"Connection was likely closed", ""}},
    {Sign::kPeerLost, {"recvValue failed on SocketImpl", ""}},
    {Sign::kPeerLost, {"sendBytes failed on SocketImpl", ""}},
    {Sign::kPeerLost, {"Failed to check the \"should dump\" flag on TCPStore", ""}},
    {Sign::kPeerLost, {"BrokenPipeError", ""}},
    {Sign::kPeerLost, {"ConnectionResetError", ""}},
    {Sign::kPeerLost, {"Socket Timeout", ""}},
    {Sign::kPeerLost, {"wait timeout after ", "keys: "}},
    {Sign::kPeerLost, {"Timed out waiting ", "operation to complete"}},
    {Sign::kPeerLost, {"Application timeout caused pair closure", ""}},
    {Sign::kPeerLost, {"failed to pass monitoredBarrier", ""}},
    // NCCL
    {Sign::kPeerLost, {"NCCL communicator was aborted", ""}},
    {Sign::kPeerLost, {"remote process exited or there was a network error", ""}},
    {Sign::kPeerLost, {"ncclRemoteError", ""}},
    {Sign::kPeerLost, {"Watchdog caught collective operation timeout", ""}},
    // Launchers that run as ranks
    {Sign::kPeerLost, {"RendezvousClosedError", ""}},
    {Sign::kPeerLost, {"RendezvousConnectionError", ""}},
    {Sign::kPeerLost, {"RendezvousTimeoutError", ""}},
    {Sign::kPeerLost, {"Sending process ", "closing signal SIGTERM"}},
    // libdtrain
    {Sign::kPeerLost, {"lost the connection to rank ", ""}},
    {Sign::kPeerLost, {"is leaving the job (it has called dtrain_finalize", ""}},
    // The rank's own
    {Sign::kException, {"Traceback (most recent call last):", ""}},
    {Sign::kCrash, {"terminate called ", ""}},
    {Sign::kCrash, {"Fatal Python error: ", ""}},
    {Sign::kCrash, {"*** Process received signal ***", ""}},
    {Sign::kCrash, {"Segmentation fault", ""}},
    {Sign::kCrash, {"Bus error", ""}},
    {Sign::kCrash, {"Floating point exception", ""}},
    {Sign::kCrash, {"Illegal instruction", ""}},
    {Sign::kCrash, {"Aborted (core dumped)", ""}},
};

// By Python itself, and by its argparse: "train.py: error: ...".
constexpr absl::string_view kMistakes[] = {
    "SyntaxError",
    "IndentationError",
    "TabError",
    "ModuleNotFoundError",
};
constexpr absl::string_view kMistakesOfUse[] = {
    "can't open file",
    "error: unrecognized arguments",
    "error: the following arguments are required",
    "error: argument",
};

bool HasPieces(absl::string_view line, const SignRow& row) {
  for (const absl::string_view piece : row.pieces) {
    const size_t at = line.find(piece);
    if (at == absl::string_view::npos) return false;
    line.remove_prefix(at + piece.size());
  }
  return true;
}

bool ConsumeNumber(absl::string_view& text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  text.remove_prefix(digits);
  return digits > 0;
}

// A shell's line for a program that was killed, or has aborted without a core: dash has the word
// alone, bash "train.sh: line 3:  4711 Killed                  python train.py". Programs log such
// words, too, but hardly like that.
Sign SignOfShell(absl::string_view line) {
  constexpr absl::string_view kLine = ": line ";
  const size_t at = line.find(kLine);
  if (at == absl::string_view::npos) {
    if (line == "Killed") return Sign::kKilled;
    return line == "Aborted" ? Sign::kCrash : Sign::kNone;
  }
  line.remove_prefix(at + kLine.size());
  if (!ConsumeNumber(line) || !absl::ConsumePrefix(&line, ": ")) return Sign::kNone;
  line = absl::StripLeadingAsciiWhitespace(line);
  if (!ConsumeNumber(line)) return Sign::kNone;
  if (absl::StartsWith(line, " Killed  ")) return Sign::kKilled;
  return absl::StartsWith(line, " Aborted  ") ? Sign::kCrash : Sign::kNone;
}

}  // namespace

Sign SignOf(absl::string_view line) {
  const auto row = std::find_if(std::begin(kSigns), std::end(kSigns),
                                [&](const SignRow& each) { return HasPieces(line, each); });
  return row == std::end(kSigns) ? SignOfShell(line) : row->sign;
}

absl::string_view MistakeOf(absl::string_view line) {
  for (const absl::string_view name : kMistakes) {
    absl::string_view rest = line;
    if (absl::ConsumePrefix(&rest, name) && absl::StartsWith(rest, ": ")) return name;
  }
  for (const absl::string_view words : kMistakesOfUse) {
    const size_t at = line.find(words);
    if (at != absl::string_view::npos && absl::EndsWith(line.substr(0, at), ": ")) return words;
  }
  return {};
}

// A carriage return begins the line again, as progress bars do; at the line's end it does nothing.
void SignReader::OfRank::AddToLine(absl::string_view part) {
  const size_t last = part.find_last_not_of('\r');
  if (last == absl::string_view::npos) {
    returned = returned || !part.empty();
    return;
  }
  const size_t begin = part.rfind('\r', last) + 1;  // npos + 1 is 0
  if (returned || begin > 0) line.clear();
  returned = last + 1 < part.size();
  part = part.substr(begin, last + 1 - begin);
  line.append(part.data(), std::min(part.size(), kLongestLine - line.size()));
}

bool SignReader::Read(Rank rank, bool is_stderr, absl::string_view data, int64_t unix_nanos) {
  OfRank& of = ranks_[rank];
  const Seen before = of.seen;
  if (of.seen.sign != Sign::kNone && unix_nanos - of.seen.unix_nanos > kGoesOnNanos) {
    of.seen.sign = Sign::kNone;
    of.seen.unix_nanos = 0;
  }
  if (data.size() > kMostOfChunk) {
    data.remove_prefix(data.size() - kMostOfChunk);
    of.line.clear();
  }
  while (is_stderr && !data.empty()) {
    const size_t end = data.find('\n');
    of.AddToLine(data.substr(0, end));
    if (end == absl::string_view::npos) break;
    data.remove_prefix(end + 1);
    const Sign sign = SignOf(of.line);
    if (!of.line.empty()) {
      of.seen.mistake = MistakeOf(of.line);
      of.seen.mistake_unix_nanos = of.seen.mistake.empty() ? 0 : unix_nanos;
    }
    of.line.clear();
    of.returned = false;
    if (sign == Sign::kPeerLost) {
      of.seen.peer_lost_unix_nanos = unix_nanos;
    } else if (sign != Sign::kNone && of.seen.sign == Sign::kNone) {
      of.seen.sign = sign;
      of.seen.unix_nanos = unix_nanos;
    }
  }
  return of.seen != before;
}

}  // namespace dtrain::job
