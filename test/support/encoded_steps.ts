import { fromBinary, toBinary } from '@bufbuild/protobuf';
import { StepSchema } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { ReadStepsResponseSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { StoredStep } from '../../src/domain/step.ts';
import { readStep } from '../../src/domain/step_codec/read.ts';
import { toInstant } from '../../src/service/convert/values.ts';
import type { EncodedSteps } from '../../src/store/contract/step.ts';

/** Decodes steps as a client does. */
export function decodedSteps(encoded: EncodedSteps | undefined): StoredStep[] {
  if (encoded === undefined) return [];
  const { steps } = fromBinary(ReadStepsResponseSchema, encoded.bytes);
  if (steps.length !== encoded.count) throw new Error(`${encoded.count} steps were announced, ${steps.length} came`);
  return steps.map(({ commitTime, writerEpoch, rewardSum, ...sent }) => {
    const bytes = toBinary(StepSchema, { ...sent, writerEpoch: 0n, rewardSum: 0 });
    return { ...readStep(bytes, 0, bytes.length), commitTime: toInstant(commitTime)!, writerEpoch, rewardSum };
  });
}
