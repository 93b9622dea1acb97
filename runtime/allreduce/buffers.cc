// SPDX-License-Identifier: Apache-2.0
#include "runtime/allreduce/buffers.h"

#include <cstdio>

namespace dtrain::allreduce {

bool Ok(dtrain_status status) {
  if (status == DTRAIN_OK) return true;
  std::fprintf(stderr, "dtrain-allreduce: %s (%s)\n", dtrain_last_error(),
               dtrain_status_name(status));
  return false;
}

Buffer::~Buffer() {
  if (memory_ != Memory::kPlain && data_ != nullptr) (void)dtrain_free(data_);
}

bool Buffer::Make(size_t bytes, Memory memory, dtrain_group alone) {
  memory_ = memory;
  alone_ = alone;
  if (memory == Memory::kShared) return Ok(dtrain_alloc(bytes, &data_));
  if (memory == Memory::kDevice) return Ok(dtrain_alloc_device(bytes, &data_));
  plain_.resize(bytes);
  data_ = plain_.data();
  return true;
}

void* Buffer::Get(size_t bytes) {
  if (memory_ != Memory::kDevice) return data_;
  host_.resize(bytes);
  return Copy(data_, host_.data(), bytes) ? host_.data() : nullptr;
}

bool Buffer::Put(size_t bytes) {
  return memory_ != Memory::kDevice || Copy(host_.data(), data_, bytes);
}

bool Buffer::Copy(const void* from, void* to, size_t bytes) const {
  dtrain_options options = DTRAIN_OPTIONS_INIT;
  options.group = alone_;
  dtrain_handle handle = 0;
  // A maximum over one rank leaves all bits as they are.
  return Ok(dtrain_allreduce_async(from, to, bytes / sizeof(int32_t), DTRAIN_INT32, DTRAIN_MAX,
                                   &options, &handle)) &&
         Ok(dtrain_wait(handle));
}

}  // namespace dtrain::allreduce
