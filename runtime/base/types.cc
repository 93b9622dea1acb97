// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/types.h"

namespace dtrain::runtime {

size_t ElementSize(dtrain_type type) {
  switch (type) {
    case DTRAIN_BYTE:
      return 1;
    case DTRAIN_INT32:
    case DTRAIN_FLOAT32:
      return 4;
    case DTRAIN_INT64:
    case DTRAIN_FLOAT64:
      return 8;
    case DTRAIN_FLOAT16:
    case DTRAIN_BFLOAT16:
      return 2;
  }
  return 0;
}

bool IsType(int64_t number) { return number >= DTRAIN_INT32 && number <= DTRAIN_BYTE; }
bool IsOp(int64_t number) { return number >= DTRAIN_SUM && number <= DTRAIN_PROD; }

const char* TypeName(dtrain_type type) {
  switch (type) {
    case DTRAIN_INT32:
      return "int32";
    case DTRAIN_INT64:
      return "int64";
    case DTRAIN_FLOAT16:
      return "float16";
    case DTRAIN_BFLOAT16:
      return "bfloat16";
    case DTRAIN_FLOAT32:
      return "float32";
    case DTRAIN_FLOAT64:
      return "float64";
    case DTRAIN_BYTE:
      return "byte";
  }
  return nullptr;
}

const char* OpName(dtrain_op op) {
  switch (op) {
    case DTRAIN_SUM:
      return "sum";
    case DTRAIN_AVG:
      return "avg";
    case DTRAIN_MIN:
      return "min";
    case DTRAIN_MAX:
      return "max";
    case DTRAIN_PROD:
      return "prod";
  }
  return nullptr;
}

}  // namespace dtrain::runtime
