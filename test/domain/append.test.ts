import { describe, expect, it } from 'vitest';
import {
  decideAppend,
  decideOpen,
  type Head,
  type OpenRequest,
  requireEpoch,
  requireWritable,
  type Writing,
} from '../../src/domain/append.ts';
import { AnabranchError } from '../../src/domain/errors.ts';
import type { Step } from '../../src/domain/step.ts';
import { ownBegin, type Trajectory } from '../../src/domain/trajectory.ts';
import { packed } from '../support/packed_steps.ts';
import { wordStep } from '../support/steps.ts';

const ID = '0192c7a4-7b1e-7d3c-9b5a-3f1e2d4c5b6a';
const UID = '0192c7a4-7b1e-7d3c-9b5a-000000000001';

function row(fields: Partial<Trajectory> = {}): Trajectory {
  return {
    ref: { tree: 1n, key: 1n },
    id: ID,
    uid: UID,
    treeId: ID,
    parent: undefined,
    name: '',
    taskId: '',
    runId: '',
    experimentId: '',
    labels: new Map(),
    metadataJson: '',
    metrics: new Map(),
    scoredMetrics: [],
    status: 'RUNNING',
    statusMessage: '',
    writerId: '',
    writerEpoch: 0n,
    nextStepNumber: 5n,
    rewardSum: 0,
    branchRewardSum: undefined,
    createTime: 0n,
    updateTime: 0n,
    sealTime: undefined,
    hidden: false,
    ...fields,
  };
}

function opening(fields: Partial<OpenRequest> = {}): OpenRequest {
  return {
    trajectoryId: ID,
    uid: undefined,
    writerId: 'w1',
    takeOverEpoch: undefined,
    expectedNextStepNumber: undefined,
    ...fields,
  };
}

function refusal(call: () => unknown): AnabranchError {
  try {
    call();
  } catch (error) {
    expect(error).toBeInstanceOf(AnabranchError);
    return error as AnabranchError;
  }
  throw new Error('nothing was refused');
}

describe('open (W1)', () => {
  const held = row({ writerId: 'w1', writerEpoch: 3n });

  it('W1: is granted, with the next epoch, if the trajectory never had a writer', () => {
    expect(decideOpen(row(), opening())).toBe(1n);
  });

  it('W1: is granted to the current writer, whatever epoch it names', () => {
    for (const takeOverEpoch of [undefined, 0n, 2n, 3n, 9n])
      expect(decideOpen(held, opening({ takeOverEpoch }))).toBe(4n);
  });

  it('W1: is granted to another writer only if it names the current epoch', () => {
    expect(decideOpen(held, opening({ writerId: 'w2', takeOverEpoch: 3n }))).toBe(4n);
    for (const takeOverEpoch of [undefined, 0n, 2n, 4n]) {
      const error = refusal(() => decideOpen(held, opening({ writerId: 'w2', takeOverEpoch })));
      expect(error).toMatchObject({ reason: 'WRITER_FENCED', metadata: { writer_id: 'w1', writer_epoch: '3' } });
      expect(error.message).toContain('"w1"');
      expect(error.message).toContain('take_over_epoch 3');
    }
  });

  it('W1: treats writer ids that differ only in case as two writers', () => {
    expect(refusal(() => decideOpen(held, opening({ writerId: 'W1' }))).reason).toBe('WRITER_FENCED');
  });

  it('W1: is granted on a sealed trajectory, so that a lost ack or seal can be replayed', () => {
    expect(decideOpen(row({ status: 'COMPLETED' }), opening())).toBe(1n);
  });

  it('W1: epochs continue above 2^53', () => {
    const writerEpoch = 2n ** 53n;
    expect(decideOpen(row({ writerId: 'w1', writerEpoch }), opening())).toBe(2n ** 53n + 1n);
  });

  it.each([
    ['does not exist', undefined, {}],
    ['is hidden', row({ hidden: true }), {}],
    ['has another uid', row({ uid: 'other' }), { uid: UID }],
    ['is hidden, and the uid matches', row({ hidden: true }), { uid: UID }],
  ])('W1: is NOT_FOUND if the row %s', (_, there, asked) => {
    const error = refusal(() => decideOpen(there, opening(asked)));
    expect(error).toMatchObject({ reason: 'TRAJECTORY_NOT_FOUND', metadata: { trajectory_id: ID } });
  });

  it('W1: checks the row before the position, and the position before the writer', () => {
    const stranger = opening({ writerId: 'w2', uid: UID, expectedNextStepNumber: 9n });
    expect(refusal(() => decideOpen(row({ ...held, uid: 'other' }), stranger)).reason).toBe('TRAJECTORY_NOT_FOUND');
    const moved = refusal(() => decideOpen(held, stranger));
    expect(moved).toMatchObject({ reason: 'UNEXPECTED_POSITION', metadata: { next_step_number: '5' } });
    expect(moved.message).toMatch(/9.*5/);
    expect(refusal(() => decideOpen(held, { ...stranger, expectedNextStepNumber: 5n })).reason).toBe('WRITER_FENCED');
  });

  it('W1: treats an expected position of 0 as set', () => {
    expect(refusal(() => decideOpen(row(), opening({ expectedNextStepNumber: 0n }))).reason).toBe(
      'UNEXPECTED_POSITION',
    );
    expect(decideOpen(row({ nextStepNumber: 0n }), opening({ expectedNextStepNumber: 0n }))).toBe(1n);
  });
});

/** Steps 0..n of a trajectory whose contents are one word each, in the form that `decideAppend` takes. */
function stored(...words: readonly string[]): (stepNumber: bigint) => Uint8Array | undefined {
  const steps = words.map((word, i) => packed(wordStep(BigInt(i), word)).bytes);
  return (stepNumber) => steps[Number(stepNumber)];
}

const ABC = stored('a', 'b', 'c');

function head(fields: Partial<Head> = {}): Head {
  return {
    end: 3n,
    status: 'RUNNING',
    statusMessage: '',
    writerId: 'w1',
    writerEpoch: 2n,
    rewardSum: 10,
    ...fields,
  };
}

function writing(steps: readonly Step[], fields: Partial<Writing> = {}): Writing {
  return { trajectoryId: ID, writerEpoch: 2n, steps: steps.map(packed), tags: [], seal: undefined, ...fields };
}

const SEALED = { status: 'COMPLETED', statusMessage: 'done' } as const;
const SEAL = { status: 'COMPLETED', message: 'done' } as const;
const OTHER_SEALS = [
  { status: 'COMPLETED', message: 'Done' },
  { status: 'COMPLETED', message: '' },
  { status: 'FAILED', message: 'done' },
  { status: 'CANCELLED', message: 'done' },
] as const;

describe('steps (W2)', () => {
  it('W2: a step at the end is appended and advances the end and the reward sum', () => {
    const at = head();
    const steps = [wordStep(3n, 'd', { reward: 1 }), wordStep(4n, 'e', { reward: Number.NaN }), wordStep(5n, 'f')];
    expect(decideAppend(at, writing(steps), ABC)).toEqual({ appended: steps.map(packed), duplicates: 0, seal: 'none' });
    expect(at).toEqual(head({ end: 6n, rewardSum: 11 }));
  });

  it('W2: the first step of an empty trajectory is 0', () => {
    const at = head({ end: 0n });
    expect(decideAppend(at, writing([wordStep(0n, 'a')]), stored()).appended).toHaveLength(1);
    expect(refusal(() => decideAppend(head({ end: 0n }), writing([wordStep(1n, 'a')]), stored()))).toMatchObject({
      reason: 'STEP_GAP',
      metadata: { step_number: '1', next_step_number: '0' },
    });
  });

  it('W2: a number below the end with the same content is a duplicate and changes nothing', () => {
    const at = head();
    const steps = [wordStep(0n, 'a'), wordStep(2n, 'c'), wordStep(1n, 'b')];
    expect(decideAppend(at, writing(steps), ABC)).toEqual({ appended: [], duplicates: 3, seal: 'none' });
    expect(at).toEqual(head());
  });

  it('W2: a number below the end with other content is a conflict', () => {
    const error = refusal(() => decideAppend(head(), writing([wordStep(1n, 'B')]), ABC));
    expect(error).toMatchObject({ reason: 'STEP_CONFLICT', metadata: { step_number: '1', next_step_number: '3' } });
    expect(error.message).toContain('branch at 0');
  });

  it('W2: the error never suggests to branch before step 0', () => {
    const error = refusal(() => decideAppend(head(), writing([wordStep(0n, 'A')]), ABC));
    expect(error.reason).toBe('STEP_CONFLICT');
    expect(error.message).not.toContain('-1');
  });

  it('W2: a number below the end whose stored step is missing is never treated as a duplicate', () => {
    expect(refusal(() => decideAppend(head(), writing([wordStep(1n, 'b')]), stored())).reason).toBe('STEP_CONFLICT');
  });

  it('W2: a number above the end is a gap, and the error names the expected number', () => {
    const error = refusal(() => decideAppend(head(), writing([wordStep(4n, 'e')]), ABC));
    expect(error).toMatchObject({ reason: 'STEP_GAP', metadata: { step_number: '4', next_step_number: '3' } });
    expect(error.message).toMatch(/is 4.*is 3/);
  });

  it('W2: a batch may contain replayed and new steps', () => {
    const at = head();
    const steps = [wordStep(1n, 'b'), wordStep(2n, 'c'), wordStep(3n, 'd')];
    expect(decideAppend(at, writing(steps), ABC)).toMatchObject({ appended: [packed(steps[2]!)], duplicates: 2 });
    expect(at.end).toBe(4n);
  });

  it('W2: numbers above 2^53 stay distinct', () => {
    const end = 2n ** 53n;
    const at = head({ end });
    decideAppend(at, writing([wordStep(end, 'x'), wordStep(end + 1n, 'y')]), ABC);
    expect(at.end).toBe(2n ** 53n + 2n);
    expect(refusal(() => decideAppend(at, writing([wordStep(2n ** 53n + 3n, 'z')]), ABC)).reason).toBe('STEP_GAP');
  });

  it('W3: a second step with the same number in one batch is a duplicate or a conflict of the first', () => {
    const at = head();
    expect(decideAppend(at, writing([wordStep(3n, 'd'), wordStep(3n, 'd')]), ABC)).toMatchObject({ duplicates: 1 });
    expect(at.end).toBe(4n);
    const twice = writing([wordStep(3n, 'd'), wordStep(3n, 'D')]);
    expect(refusal(() => decideAppend(head(), twice, ABC)).reason).toBe('STEP_CONFLICT');
  });

  it('W3: steps after a terminated step are allowed', () => {
    const at = head();
    decideAppend(at, writing([wordStep(3n, 'd', { terminated: true }), wordStep(4n, 'e')]), ABC);
    expect(at.end).toBe(5n);
  });

  it.each([
    ['a gap', [wordStep(3n, 'd'), wordStep(5n, 'f')]],
    ['a conflict', [wordStep(3n, 'd'), wordStep(1n, 'B')]],
  ])('W3: a batch with %s after valid steps changes nothing at all', (_, steps) => {
    const at = head();
    refusal(() => decideAppend(at, writing(steps, { seal: SEAL }), ABC));
    expect(at).toEqual(head());
  });
});

describe('order of the checks (W2)', () => {
  const conflict = wordStep(1n, 'B');
  const gap = wordStep(9n, 'x');

  it('W2: the epoch is checked before the steps', () => {
    for (const steps of [[conflict], [gap], [wordStep(1n, 'b')], [wordStep(3n, 'd')], []])
      for (const seal of [undefined, SEAL]) {
        const sealed = head(SEALED);
        const error = refusal(() => decideAppend(sealed, writing(steps, { writerEpoch: 1n, seal }), ABC));
        expect(error).toMatchObject({ reason: 'WRITER_FENCED', metadata: { writer_id: 'w1', writer_epoch: '2' } });
        expect(sealed).toEqual(head(SEALED));
      }
  });

  it('F1: a writer with an older or newer epoch than the row is refused', () => {
    for (const writerEpoch of [0n, 1n, 3n, 2n ** 60n])
      expect(refusal(() => requireEpoch(head(), writerEpoch)).reason).toBe('WRITER_FENCED');
    expect(() => requireEpoch(head(), 2n)).not.toThrow();
  });

  it('W2: on a sealed trajectory duplicates are still recognised, and conflicts take precedence over the seal', () => {
    expect(decideAppend(head(SEALED), writing([wordStep(1n, 'b')]), ABC).duplicates).toBe(1);
    expect(refusal(() => decideAppend(head(SEALED), writing([conflict]), ABC)).reason).toBe('STEP_CONFLICT');
  });

  it('W2: a sealed trajectory refuses the next step, and reports a gap as sealed', () => {
    for (const step of [wordStep(3n, 'd'), gap]) {
      const error = refusal(() => decideAppend(head(SEALED), writing([step]), ABC));
      expect(error).toMatchObject({
        reason: 'TRAJECTORY_SEALED',
        metadata: { status: 'COMPLETED', next_step_number: '3' },
      });
    }
  });

  it('W2: the row is checked first: missing, hidden, or with another uid is NOT_FOUND', () => {
    expect(requireWritable(row(), ID, undefined)).toEqual(row());
    expect(requireWritable(row(), ID, UID)).toEqual(row());
    for (const [there, uid] of [
      [undefined, undefined],
      [row({ hidden: true }), undefined],
      [row({ hidden: true }), UID],
      [row({ uid: 'other' }), UID],
    ] as const)
      expect(refusal(() => requireWritable(there, ID, uid)).reason).toBe('TRAJECTORY_NOT_FOUND');
  });
});

describe('seal (W5)', () => {
  it('W5: is applied after the steps of its frame, in one decision', () => {
    const at = head();
    const steps = [wordStep(3n, 'd')];
    expect(decideAppend(at, writing(steps, { seal: SEAL }), ABC)).toEqual({
      appended: steps.map(packed),
      duplicates: 0,
      seal: 'sealed',
    });
    expect(at).toEqual(head({ ...SEALED, end: 4n }));
  });

  it('W5, L1: is possible without steps too, with every status that seals', () => {
    for (const status of ['COMPLETED', 'FAILED', 'CANCELLED'] as const) {
      const at = head();
      expect(decideAppend(at, writing([], { seal: { status, message: '' } }), ABC).seal).toBe('sealed');
      expect(at.status).toBe(status);
    }
  });

  it('W5: an equal seal again changes nothing, alone or after replayed steps', () => {
    for (const steps of [[], [wordStep(2n, 'c')]]) {
      const at = head(SEALED);
      expect(decideAppend(at, writing(steps, { seal: SEAL }), ABC).seal).toBe('was_sealed');
      expect(at).toEqual(head(SEALED));
    }
  });

  it.each(OTHER_SEALS)('W5: a different seal ($status "$message") is TRAJECTORY_SEALED', (seal) => {
    const at = head(SEALED);
    const error = refusal(() => decideAppend(at, writing([wordStep(2n, 'c')], { seal }), ABC));
    expect(error.reason).toBe('TRAJECTORY_SEALED');
    expect(at).toEqual(head(SEALED));
  });

  it('W5: a seal after a refused step is not applied', () => {
    const at = head();
    refusal(() => decideAppend(at, writing([wordStep(4n, 'e')], { seal: SEAL }), ABC));
    expect(at.status).toBe('RUNNING');
  });
});

describe('unary calls (W8)', () => {
  it('W8: without an epoch they are accepted only if the trajectory never had a writer', () => {
    const unheld = head({ writerId: '', writerEpoch: 0n });
    const plain = writing([wordStep(3n, 'd')], { writerEpoch: undefined });
    expect(decideAppend(unheld, plain, ABC).appended).toHaveLength(1);
    expect(refusal(() => decideAppend(head(), plain, ABC))).toMatchObject({
      reason: 'WRITER_FENCED',
      metadata: { writer_id: 'w1', writer_epoch: '2' },
    });
    expect(refusal(() => decideAppend(head(), writing([], { writerEpoch: undefined, seal: SEAL }), ABC)).reason).toBe(
      'WRITER_FENCED',
    );
  });

  it('W8: with the current epoch they are accepted', () => {
    expect(decideAppend(head(), writing([wordStep(3n, 'd')], { writerEpoch: 2n }), ABC).appended).toHaveLength(1);
  });

  it('W14: with a writer they are granted the next epoch, together with the steps or not at all', () => {
    const moved = head();
    const writer = { writerId: 'w2', takeOverEpoch: 2n };
    expect(decideAppend(moved, writing([wordStep(3n, 'd')], { writer }), ABC).epoch).toBe(3n);
    expect(moved).toMatchObject({ writerId: 'w2', writerEpoch: 3n, end: 4n });
    const before = { ...moved };
    expect(refusal(() => decideAppend(moved, writing([wordStep(9n, 'j')], { writer }), ABC)).reason).toBe('STEP_GAP');
    const late = writing([wordStep(4n, 'e')], { writer: { writerId: 'w1', takeOverEpoch: 2n } });
    expect(refusal(() => decideAppend(moved, late, ABC)).reason).toBe('WRITER_FENCED');
    expect(moved).toEqual(before);
  });

  it('W8: an epoch is refused if the trajectory never had a writer', () => {
    const unheld = head({ writerId: '', writerEpoch: 0n });
    const error = refusal(() => decideAppend(unheld, writing([wordStep(3n, 'd')], { writerEpoch: 1n }), ABC));
    expect(error).toMatchObject({ reason: 'WRITER_FENCED', metadata: { writer_id: '', writer_epoch: '0' } });
  });
});

describe('own steps', () => {
  it('O2: start after the branch point; those of a root start at 0', () => {
    expect(ownBegin(row())).toBe(0n);
    expect(ownBegin(row({ parent: { key: 1n, id: ID, branchPoint: 0n } }))).toBe(1n);
    expect(ownBegin(row({ parent: { key: 1n, id: ID, branchPoint: 2n ** 53n } }))).toBe(2n ** 53n + 1n);
  });
});
