// SPDX-License-Identifier: Apache-2.0
// The only file that is compiled once per library.
extern "C" {
extern const int fake_nccl_version;
const int fake_nccl_version = FAKE_NCCL_FILE_VERSION;
}
