import { randomUUID } from 'node:crypto';
import { describe, expect } from 'vitest';
import { type Attempt, type Rollout, shownAttempt } from '../../src/domain/rollout.ts';
import type { Run, Stage } from '../../src/domain/run.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import type { EnvironmentUpsert } from '../../src/store/contract/environment.ts';
import type { GroupUpsert } from '../../src/store/contract/group.ts';
import type {
  AttemptReport,
  Claim,
  ClaimOutcome,
  ClaimRequest,
  CreatedRollout,
  LeaseToken,
  NewRollout,
  ReleaseDetails,
  RolloutCursor,
  RolloutEnd,
  RolloutFilter,
  RolloutMoveDetails,
  RolloutRecord,
} from '../../src/store/contract/rollout.ts';
import type { Store } from '../../src/store/contract/store.ts';
import { describeStore, type OnStore } from './on_store.ts';
import { RunScene } from './run_scene.ts';

/** Defaults of a request: all rollouts, or the stage that was created last. */
type ClaimsFrom = (typeof CLAIMS_FROM)[number];
const CLAIMS_FROM = ['anywhere', 'a stage'] as const;

/** The same tests twice, since the next rollout of a named stage is found differently. */
export function describeClaims(noun: string, define: (scenes: () => RolloutScene, on: OnStore) => void): void {
  describeStore(noun, (on) => {
    describe.each(CLAIMS_FROM)('from %s', (from) => define(() => new RolloutScene(on.store, undefined, from), on));
  });
}

/**
 * A namespace in which rollouts are created, claimed and ended, with short forms of calls that the tests make often.
 */
export class RolloutScene extends RunScene {
  readonly #claimsFrom: ClaimsFrom;
  #placed: string | undefined;

  constructor(store: Store, namespace?: string, claimsFrom: ClaimsFrom = 'anywhere') {
    super(store, namespace);
    this.#claimsFrom = claimsFrom;
  }

  /** Creates a stage in a run of its own, both RUNNING. */
  async place(): Promise<{ readonly run: Run; readonly stage: Stage }> {
    const run = await this.makeRun({ status: 'RUNNING' });
    const stage = await this.stage(run, { status: 'RUNNING' });
    this.#placed = stage.id;
    return { run, stage };
  }

  async makeRollouts(
    stage: { readonly id: string },
    rollouts: readonly Partial<NewRollout>[],
  ): Promise<readonly CreatedRollout[]> {
    const rows = rollouts.map(newRollout);
    return (await this.store.createRollouts(this.caller, stage.id, rows, undefined, undefined)).rollouts;
  }

  /** Creates this many rollouts of one group, numbered from 0. Returns their ids. */
  async queue(stage: { readonly id: string }, count: number, fields: Partial<NewRollout> = {}): Promise<string[]> {
    const rollouts = Array.from({ length: count }, (_, i) => ({ number: BigInt(i), ...fields }));
    return (await this.makeRollouts(stage, rollouts)).map(({ rolloutId }) => rolloutId);
  }

  async task(id: string, maxTurns?: bigint): Promise<string> {
    const nothing = undefined;
    await this.store.upsertTasks(this.namespace, [
      {
        id,
        name: id,
        description: nothing,
        difficulty: nothing,
        category: nothing,
        appName: nothing,
        sourceType: nothing,
        maxTurns,
        tags: nothing,
        prerequisites: nothing,
        inputJson: nothing,
        metadataJson: nothing,
      },
    ]);
    return id;
  }

  /** Returns its id. */
  async validator(taskId: string, type: string, advisory = false): Promise<string> {
    const upsert = { newId: randomUUID(), query: `is it ${type}?`, expectedResult: 'yes', advisory };
    await this.store.upsertTasks(this.namespace, [{ id: taskId, validators: new Map([[type, upsert]]) }]);
    return (await this.store.getTask(this.namespace, taskId))?.validators.get(type)?.id ?? '';
  }

  /** Returns its id. */
  async environment(run: Run): Promise<string> {
    return (await this.store.upsertEnvironment(this.caller, newEnvironment(run.id))).environment.id;
  }

  request(fields: Partial<ClaimRequest> & { readonly count?: number } = {}): ClaimRequest {
    const { count = 1, ...given } = fields;
    return {
      caller: this.caller,
      runId: undefined,
      stageId: this.#claimsFrom === 'anywhere' || given.runId !== undefined ? undefined : this.#placed,
      taskIds: [],
      rolloutIds: [],
      labels: new Map(),
      minPriority: 0,
      workerId: 'worker',
      leaseMs: 60_000,
      trajectories: Array.from({ length: count }, () => ({ id: randomUUID(), uid: randomUUID() })),
      countFitting: ({ length }) => length,
      key: undefined,
      ...given,
    };
  }

  async claims(fields: Partial<ClaimRequest> & { readonly count?: number } = {}): Promise<readonly Claim[]> {
    const [outcome] = await this.store.claimRollouts([this.request(fields)]);
    return claimed(outcome).claims;
  }

  /** Claims the next rollout; there must be one. */
  async claimOne(fields: Partial<ClaimRequest> = {}): Promise<Claim> {
    const [claim] = await this.claims(fields);
    if (claim === undefined) throw new Error('nothing was claimed');
    return claim;
  }

  /** Includes validations and environments of the attempt that the rollout shows. */
  async record(id: string): Promise<RolloutRecord & Pick<Attempt, 'validations' | 'environmentIds'>> {
    const found = await this.store.getRollout(this.namespace, id);
    if (found === undefined) throw new Error(`rollout ${id} was not found`);
    const { validations = [], environmentIds = [] } = shownAttempt(found.rollout, found.attempts) ?? {};
    return { ...found, validations, environmentIds };
  }

  async rollout(id: string): Promise<Rollout> {
    return (await this.record(id)).rollout;
  }

  rollouts(of: RolloutFilter['of'], filter: Partial<RolloutFilter> = {}, limit = 1000, after?: RolloutCursor) {
    const place = of === undefined ? {} : { of };
    return this.store.listRollouts(this.namespace, { ...filter, ...place }, { limit, after }, 'FULL');
  }

  start(claim: Claim, details: Partial<RolloutMoveDetails> = {}): Promise<Rollout> {
    return this.store.startRollout(this.caller, tokenOf(claim), { ...NOTHING_SAID, ...details });
  }

  release(
    token: LeaseToken,
    details: Partial<ReleaseDetails> = {},
    report: Partial<AttemptReport> = {},
  ): Promise<Rollout> {
    const released = { ...NOTHING_SAID, refundAttempt: false, ...details };
    return this.store.releaseRollout(this.caller, token, released, { ...NO_REPORT, ...report });
  }

  retry(token: LeaseToken, details: Partial<RolloutMoveDetails> = {}): Promise<Rollout> {
    return this.store.retryRollout(this.caller, token, { ...NOTHING_SAID, ...details });
  }

  complete(claim: Claim, fields: Partial<RolloutEnd> = {}): Promise<Rollout> {
    return this.#end({ ...tokenOf(claim), status: 'COMPLETED', ...fields });
  }

  fail(claim: Claim, fields: Partial<RolloutEnd> = {}): Promise<Rollout> {
    return this.#end({ ...tokenOf(claim), status: 'FAILED', ...fields });
  }

  cancel(id: string, message = ''): Promise<Rollout> {
    return this.#end({ id, attempt: undefined, status: 'CANCELLED', details: { ...NOTHING_SAID, message } });
  }

  #end(fields: Pick<RolloutEnd, 'id' | 'attempt' | 'status'> & Partial<RolloutEnd>): Promise<Rollout> {
    return this.store.endRollout(this.caller, {
      details: NOTHING_SAID,
      result: undefined,
      expectedNextStepNumber: undefined,
      ...NO_REPORT,
      ...fields,
    });
  }

  /** The current trajectory of an attempt. */
  trajectoryOf(claim: Claim): Promise<Trajectory> {
    return this.get(claim.trajectory.id);
  }

  heartbeat(leases: readonly LeaseToken[], leaseMs?: number) {
    return this.store.heartbeatRollouts(this.caller, leases, leaseMs);
  }
}

export const NOTHING_SAID: RolloutMoveDetails = { message: '', metadataJson: '' };

export const NO_REPORT: AttemptReport = { validations: [], metrics: new Map(), timings: new Map() };

export function newRollout(fields: Partial<NewRollout> = {}): NewRollout {
  return {
    id: randomUUID(),
    groupId: randomUUID(),
    groupNumber: 0n,
    number: 0n,
    taskId: '',
    labels: new Map(),
    inputJson: '',
    priority: 0,
    maxTurns: undefined,
    maxAttempts: 3,
    attemptTimeoutMs: undefined,
    // Most tests claim a released rollout again at once.
    retryDelayMs: 0,
    startFrom: undefined,
    modelUri: '',
    metadataJson: '',
    onSuccess: 'CONTINUE',
    ...fields,
  };
}

export function newGroup(stageId: string, fields: Partial<GroupUpsert> = {}): GroupUpsert {
  return { id: randomUUID(), stageId, number: 0n, ...fields };
}

export function newEnvironment(runId: string, fields: Partial<EnvironmentUpsert> = {}): EnvironmentUpsert {
  return { id: randomUUID(), runId, ...fields };
}

export const NO_RESULT = {
  reward: undefined,
  taskCompleted: undefined,
  agentReportedSuccess: undefined,
  success: undefined,
  errors: [],
  summaryJson: '',
} as const;

export function tokenOf({ rollout }: Claim): LeaseToken {
  return { id: rollout.id, attempt: rollout.attempt };
}

export function claimed(outcome: ClaimOutcome | undefined): Extract<ClaimOutcome, { kind: 'claimed' }> {
  if (outcome?.kind === 'refused') throw outcome.error;
  expect(outcome?.kind).toBe('claimed');
  return outcome as Extract<ClaimOutcome, { kind: 'claimed' }>;
}
