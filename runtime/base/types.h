// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "dtrain/dtrain.h"

namespace dtrain::runtime {

// Bytes of one element; 0 for a type that this build does not have.
size_t ElementSize(dtrain_type type);

// Whether a number that another process sent may become one.
bool IsType(int64_t number);
bool IsOp(int64_t number);

// nullptr for a number that is no type or operation.
const char* TypeName(dtrain_type type);  // "float32"
const char* OpName(dtrain_op op);        // "sum"

}  // namespace dtrain::runtime
