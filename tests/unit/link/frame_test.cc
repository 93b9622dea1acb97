// SPDX-License-Identifier: Apache-2.0
#include "common/link/frame.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace dtrain::link {
namespace {

std::string Wire(const Frame& frame) {
  const auto header = EncodeHeader(frame.header);
  return absl::StrCat(absl::string_view(header.data(), header.size()), frame.payload.view());
}

Frame KeptFrame(uint64_t sequence, std::string payload, bool more = false) {
  Frame frame;
  frame.payload = SharedBytes(std::move(payload));
  frame.header.size = static_cast<uint32_t>(frame.payload.size());
  frame.header.channel = Channel::kJob;
  frame.header.keep = true;
  frame.header.more = more;
  frame.header.sequence = sequence;
  frame.header.ack = 0x1122334455667788;
  return frame;
}

TEST(FrameTest, TheHeaderIsWhatThePageSays) {
  const std::string wire = Wire(KeptFrame(0x0102030405060708, "abc", true));
  EXPECT_EQ(wire, std::string("\x03\0\0\0"
                              "\x01"
                              "\x03"
                              "\0\0"
                              "\x08\x07\x06\x05\x04\x03\x02\x01"
                              "\x88\x77\x66\x55\x44\x33\x22\x11"
                              "abc",
                              27));
}

TEST(FrameTest, WhatIsWrittenIsRead) {
  for (Channel channel : {Channel::kAgent, Channel::kJob, Channel::kLogs}) {
    for (bool keep : {false, true}) {
      for (bool more : {false, true}) {
        if (more && !keep) continue;
        Header header;
        header.size = more ? 1 : kMostPayload;
        header.channel = channel;
        header.keep = keep;
        header.more = more;
        header.sequence = keep ? ~uint64_t{0} : 0;
        header.ack = ~uint64_t{0} - 1;
        const auto bytes = EncodeHeader(header);
        auto read = DecodeHeader(absl::string_view(bytes.data(), bytes.size()));
        ASSERT_TRUE(read.ok()) << read.status();
        EXPECT_EQ(read->size, header.size);
        EXPECT_EQ(read->channel, channel);
        EXPECT_EQ(read->keep, keep);
        EXPECT_EQ(read->more, more);
        EXPECT_EQ(read->sequence, header.sequence);
        EXPECT_EQ(read->ack, header.ack);
      }
    }
  }
}

struct Malformed {
  const char* name;
  size_t at;      // byte of the header
  uint8_t value;  // that is put there
  const char* why;
};

class MalformedHeader : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedHeader, IsRefused) {
  std::string bytes = Wire(KeptFrame(1, "")).substr(0, kHeaderBytes);
  ASSERT_TRUE(DecodeHeader(bytes).ok());
  bytes[GetParam().at] = static_cast<char>(GetParam().value);
  const absl::Status status = DecodeHeader(bytes).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_NE(status.message().find(GetParam().why), absl::string_view::npos) << status;
}

INSTANTIATE_TEST_SUITE_P(
    FrameTest, MalformedHeader,
    ::testing::Values(Malformed{"SizeOf2GiB", 3, 0x80, "size 2147483648"},
                      Malformed{"SizeOf16MiB", 3, 0x01, "size 16777216"},
                      Malformed{"Channel3", 4, 3, "channel 3"},
                      Malformed{"Channel255", 4, 255, "channel 255"},
                      Malformed{"Flag4", 5, 1 | 4, "flags 5"},
                      Malformed{"Flag128", 5, 1 | 128, "flags 129"},
                      Malformed{"FirstReservedByte", 6, 1, "reserved bytes 1"},
                      Malformed{"SecondReservedByte", 7, 1, "reserved bytes 256"},
                      Malformed{"KeepWithoutSequence", 8, 0, "sequence 0, with KEEP"},
                      Malformed{"SequenceWithoutKeep", 5, 0, "sequence 1, without KEEP"},
                      Malformed{"MoreWithoutBytes", 5, 3, "size 0, with MORE"}),
    [](const auto& row) { return row.param.name; });

TEST(FrameTest, OneByteMoreThanAFrameMayHaveIsRefused) {
  Header header;
  header.size = kMostPayload + 1;
  const auto bytes = EncodeHeader(header);
  EXPECT_FALSE(DecodeHeader(absl::string_view(bytes.data(), bytes.size())).ok());
}

TEST(FrameTest, MoreWithoutKeepIsRefused) {
  std::string bytes = Wire(Frame());
  bytes[0] = 1;
  bytes[5] = 2;
  EXPECT_FALSE(DecodeHeader(bytes).ok());
}

TEST(FrameTest, AWholeMessageIsOneFrameAndNothingElse) {
  const std::string wire = Wire(KeptFrame(7, "payload"));
  auto frame = DecodeFrame(SharedBytes(wire));
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(frame->payload.view(), "payload");
  EXPECT_EQ(frame->header.sequence, 7u);
  for (size_t size = 0; size < wire.size(); ++size) {
    EXPECT_FALSE(DecodeFrame(SharedBytes(wire.substr(0, size))).ok()) << size;
  }
  EXPECT_FALSE(DecodeFrame(SharedBytes(wire + "x")).ok());
}

TEST(FrameReaderTest, FramesAreFoundHoweverTheStreamIsCut) {
  std::string stream;
  const std::vector<std::string> payloads = {"", "a", std::string(100, 'b'), "", "c"};
  for (size_t i = 0; i < payloads.size(); ++i) stream += Wire(KeptFrame(i + 1, payloads[i]));
  for (size_t piece = 1; piece <= stream.size(); ++piece) {
    FrameReader reader;
    std::vector<std::string> found;
    for (size_t at = 0; at < stream.size(); at += piece) {
      reader.Add(absl::string_view(stream).substr(at, piece));
      for (;;) {
        auto frame = reader.Next();
        ASSERT_TRUE(frame.ok()) << frame.status();
        if (!frame->has_value()) break;
        found.emplace_back((*frame)->payload.view());
      }
    }
    EXPECT_EQ(found, payloads) << "cut into pieces of " << piece;
    EXPECT_TRUE(reader.between_frames());
  }
}

TEST(FrameReaderTest, ATornFrameIsSeenAtTheEnd) {
  const std::string wire = Wire(KeptFrame(1, "abc"));
  for (size_t size = 0; size <= wire.size(); ++size) {
    FrameReader reader;
    reader.Add(wire.substr(0, size));
    auto frame = reader.Next();
    ASSERT_TRUE(frame.ok());
    EXPECT_EQ(frame->has_value(), size == wire.size());
    EXPECT_EQ(reader.between_frames(), size == 0 || size == wire.size()) << size;
  }
}

TEST(FrameReaderTest, AnInvalidHeaderIsSeenBeforeItsPayloadAndAgain) {
  FrameReader reader;
  std::string header = Wire(KeptFrame(1, "")).substr(0, kHeaderBytes);
  header[3] = 0x7f;
  reader.Add(Wire(KeptFrame(1, "fine")));
  reader.Add(header);
  auto first = reader.Next();
  ASSERT_TRUE(first.ok() && first->has_value());
  EXPECT_FALSE(reader.Next().ok());
  EXPECT_FALSE(reader.Next().ok());
}

TEST(PiecesTest, AreViewsOfOneBufferAndMakeTheMessageAgain) {
  for (size_t size : {0, 1, 9, 10, 11, 19, 20, 21, 1000}) {
    std::string bytes;
    for (size_t i = 0; i < size; ++i) bytes += static_cast<char>('a' + i % 26);
    const SharedBytes message(bytes);
    const size_t count = PieceCount(size, 10);
    EXPECT_EQ(count, size <= 10 ? 1 : (size + 9) / 10);
    Assembler assembler(size);
    for (size_t i = 0; i < count; ++i) {
      const SharedBytes piece = PieceOf(message, i, 10);
      EXPECT_EQ(piece.owner(), message.owner());
      EXPECT_EQ(piece.view().data(), message.view().data() + i * 10);
      auto whole = assembler.Take(piece, i + 1 < count);
      ASSERT_TRUE(whole.ok()) << whole.status();
      ASSERT_EQ(whole->has_value(), i + 1 == count);
      if (*whole) {
        EXPECT_EQ((*whole)->view(), bytes);
        // One piece is not copied.
        EXPECT_EQ((*whole)->owner() == message.owner(), count == 1);
      }
    }
    EXPECT_EQ(assembler.bytes(), 0u);
  }
}

TEST(AssemblerTest, AMessageHasAsManyBytesAsItMayAndNotOneMore) {
  Assembler assembler(10);
  ASSERT_TRUE(assembler.Take(SharedBytes("12345"), true).ok());
  auto whole = assembler.Take(SharedBytes("67890"), false);
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ((*whole)->view(), "1234567890");
  EXPECT_FALSE(assembler.Take(SharedBytes("12345678901"), false).ok());
  ASSERT_TRUE(assembler.Take(SharedBytes("12345"), true).ok());
  EXPECT_FALSE(assembler.Take(SharedBytes("678901"), true).ok());
  EXPECT_EQ(assembler.bytes(), 5u);  // it was refused before it was kept
}

TEST(AssemblerTest, PiecesWithoutBytesAreRefused) {
  Assembler assembler(10);
  EXPECT_FALSE(assembler.Take(SharedBytes(), true).ok());
  ASSERT_TRUE(assembler.Take(SharedBytes("1"), true).ok());
  EXPECT_FALSE(assembler.Take(SharedBytes(), false).ok());
}

TEST(SharedBytesTest, BytesGoWithTheirLastHolder) {
  auto owner = std::make_shared<const std::string>("0123456789");
  std::weak_ptr<const std::string> watch = owner;
  SharedBytes bytes(owner, *owner, owner->size());
  owner.reset();
  SharedBytes part = bytes.Sub(2, 3);
  bytes = SharedBytes();
  EXPECT_EQ(part.view(), "234");
  EXPECT_EQ(part.whole(), 10u);
  EXPECT_FALSE(watch.expired());
  part = SharedBytes();
  EXPECT_TRUE(watch.expired());
}

}  // namespace
}  // namespace dtrain::link
