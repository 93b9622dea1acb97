// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/shepherd/env_builder.h"
#include "dtrain/v1/job.pb.h"

// What workers are given only where the user asks for it. docs/environment.md lists the variables
// and what reads them. PURE.
namespace dtrain::shepherd {

bool HasContract(const v1::JobPart& part, v1::Contract contract);

void SetTensorflow(const v1::JobPart& part, const v1::WorkerSpec& worker, EnvBuilder& env);
void SetSlurm(const v1::JobPart& part, const v1::WorkerSpec& worker, EnvBuilder& env);
void SetSagemaker(const v1::JobPart& part, const v1::WorkerSpec& worker, EnvBuilder& env);
void SetTorchrunAgent(const v1::JobPart& part, EnvBuilder& env);

}  // namespace dtrain::shepherd
