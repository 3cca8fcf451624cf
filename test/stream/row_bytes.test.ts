import { isFieldSet, ScalarType, toBinary } from '@bufbuild/protobuf';
import { expect, it } from 'vitest';
import { RolloutSchema } from '../../gen/es/anabranch/v1/rollout_pb.js';
import { StageSchema } from '../../gen/es/anabranch/v1/run_pb.js';
import { instantFromParts } from '../../src/domain/instant.ts';
import type { Rollout } from '../../src/domain/rollout.ts';
import type { Stage } from '../../src/domain/run.ts';
import { fromBareRollout, fromRollout } from '../../src/service/rollout/messages.ts';
import { stageMessage } from '../../src/service/stage/stage.ts';
import { rowBytes } from '../../src/stream/row_bytes.ts';

const ID = '0192c7a4-7b1e-7d3c-9b5a-3f1e2d4c5b6a';
const TEXT = '木'.repeat(100);
const TIME = instantFromParts(-62_135_596_800n, 999_999_999);
const MAPS = {
  labels: new Map([[TEXT, TEXT]]),
  metrics: new Map([['m', 0.5]]),
  timings: new Map([['t', { startTime: TIME, endTime: TIME }]]),
};
const TIMES = { startTime: TIME, endTime: TIME, createTime: TIME, updateTime: TIME };
const of = (key: bigint) => ({ key, id: ID });

const STAGE: Stage = {
  ...MAPS,
  ...TIMES,
  ...of(1n),
  run: of(1n),
  kind: 'TRAIN_STEP',
  number: -1n,
  batch: -1n,
  status: 'RUNNING',
  statusMessage: TEXT,
  phase: TEXT,
  modelUri: TEXT,
  modelCheckpointUri: TEXT,
  metadataJson: TEXT,
  completedSubsteps: -1n,
  totalSubsteps: -1n,
  queueCloseTime: TIME,
  revision: -1n,
};

const ROLLOUT: Rollout = {
  ...MAPS,
  ...TIMES,
  ...of(1n),
  run: of(1n),
  stage: of(1n),
  group: { ...of(1n), number: -1n },
  number: -1n,
  taskId: TEXT,
  inputJson: TEXT,
  priority: -1,
  maxTurns: -1n,
  maxAttempts: 100,
  refundedAttempts: 100,
  attemptTimeoutMs: 1e12,
  retryDelayMs: 1e12,
  startFrom: { trajectoryId: ID, stepNumber: -1n },
  modelUri: TEXT,
  status: 'COMPLETED',
  statusMessage: TEXT,
  phase: TEXT,
  attempt: 100,
  trajectoryId: ID,
  turns: -1n,
  workerId: TEXT,
  leaseEndTime: TIME,
  claimableTime: TIME,
  result: {
    reward: 1,
    taskCompleted: true,
    agentReportedSuccess: true,
    success: true,
    errors: [TEXT, TEXT],
    summaryJson: TEXT,
  },
  validationPassed: true,
  override: { ordinal: -1n, attempt: 1, success: true, reason: TEXT, actor: TEXT, overrideTime: TIME },
  success: true,
  reward: 0.5,
  metadataJson: TEXT,
  revision: -1n,
};

it('RD3: the size that is counted for a row is no less than its message, and less than twice as much', () => {
  for (const [row, bytes] of [
    [STAGE, toBinary(StageSchema, stageMessage(STAGE, 'FULL')).length],
    [ROLLOUT, toBinary(RolloutSchema, fromRollout(ROLLOUT, 'FULL')).length],
  ] as const) {
    expect(rowBytes(row)).toBeGreaterThanOrEqual(bytes);
    expect(rowBytes(row)).toBeLessThan(2 * bytes);
  }
});

it('RD3: the smallest form of a rollout has no text except ids, and no maps', () => {
  const bare = fromBareRollout(ROLLOUT);
  const isId = (name: string) => name === 'id' || name.endsWith('_id');
  for (const field of RolloutSchema.fields) {
    const isText = field.scalar === ScalarType.STRING && !isId(field.name);
    const holdsText = ['result', 'override'].includes(field.name);
    expect(isFieldSet(bare, field), field.name).toBe(!(isText || holdsText || field.fieldKind === 'map'));
  }
});
