import { randomUUID } from 'node:crypto';
import type { Verb } from '../../src/domain/lifecycle.ts';
import type { Experiment, Run, Stage } from '../../src/domain/run.ts';
import type { Step } from '../../src/domain/step.ts';
import type { NewExperiment } from '../../src/store/contract/experiment.ts';
import type { IdempotencyKey } from '../../src/store/contract/request.ts';
import type {
  CreatedRun,
  MoveDetails,
  NewMainTrajectory,
  NewRun,
  NewRunBranch,
  RunFilter,
  RunMove,
} from '../../src/store/contract/run.ts';
import type { NewStage } from '../../src/store/contract/stage.ts';
import type { StatusChange, StatusOwner } from '../../src/store/contract/status_change.ts';
import { packed } from '../support/packed_steps.ts';
import { Scene } from './scene.ts';

const ALL = { limit: 1000, after: undefined };

/** A namespace in which runs are created, with short forms of calls that the tests make often. */
export class RunScene extends Scene {
  experiment(fields: Partial<NewExperiment> = {}, key?: IdempotencyKey): Promise<Experiment> {
    return this.store.createExperiment(this.caller, newExperiment(fields), key);
  }

  make(fields: Partial<NewRun> = {}, key?: IdempotencyKey): Promise<CreatedRun> {
    return this.store.createRun(this.caller, newRun(fields), key);
  }

  async makeRun(fields: Partial<NewRun> = {}, key?: IdempotencyKey): Promise<Run> {
    return (await this.make(fields, key)).run;
  }

  /** Creates a run whose main trajectory has one step for each word. */
  async makeRunWith(words: readonly string[], fields: Partial<NewRun> = {}): Promise<Run> {
    const { run, mainTrajectory } = await this.make({ mainTrajectory: newMain(), ...fields });
    if (mainTrajectory === undefined) throw new Error('the run has no main trajectory');
    if (words.length > 0) await this.appendWords(mainTrajectory, words);
    return this.run(run.id);
  }

  branchOff(
    source: { readonly id: string },
    at: bigint | string,
    fields: Partial<NewRunBranch> = {},
    key?: IdempotencyKey,
  ) {
    return this.store.branchRun(this.caller, newRunBranch(source.id, at, fields), key);
  }

  async run(id: string): Promise<Run> {
    const found = await this.store.getRun(this.namespace, { id });
    if (found === undefined) throw new Error(`run ${id} was not found`);
    return found;
  }

  runs(filter: RunFilter = {}): Promise<Run[]> {
    return this.store.listRuns(this.namespace, filter, ALL, 'BASIC');
  }

  async runNames(filter: RunFilter = {}): Promise<string[]> {
    return (await this.runs(filter)).map(({ name }) => name);
  }

  move(
    run: { readonly id: string },
    verb: Verb,
    details: Partial<MoveDetails> = {},
    more: Partial<RunMove> = {},
  ): Promise<Run> {
    return this.store.moveRun(this.caller, run.id, { ...runMove(verb, details), ...more });
  }

  async stage(run: { readonly id: string }, fields: Partial<NewStage> = {}): Promise<Stage> {
    return (await this.store.getOrCreateStage(this.caller, newStage(run.id, fields))).stage;
  }

  /** Oldest first. */
  history(noun: StatusOwner['noun'], { id }: { readonly id: string }): Promise<StatusChange[]> {
    return this.store.listStatusChanges(this.namespace, { noun, id }, ALL, true);
  }
}

export const SILENT: MoveDetails = { message: '', metadataJson: '', phase: undefined, resultJson: '' };

/** A verb as a request contains it, with ids for the main trajectory that a reopening may create. */
export function runMove(verb: Verb, details: Partial<MoveDetails> = {}): RunMove {
  const ids = { trajectoryId: randomUUID(), trajectoryUid: randomUUID() };
  return { verb, details: { ...SILENT, ...details }, keepTrajectoryOpen: false, ...ids };
}

export function newExperiment(fields: Partial<NewExperiment> = {}): NewExperiment {
  return {
    id: randomUUID(),
    name: `experiment ${randomUUID()}`,
    description: '',
    environmentName: '',
    environmentConfigJson: '',
    agentType: '',
    agentConfigJson: '',
    defaultConfigJson: '',
    maxSteps: undefined,
    seed: undefined,
    tags: [],
    metadataJson: '',
    ...fields,
  };
}

export function newStage(runId: string, fields: Partial<NewStage> = {}): NewStage {
  return {
    id: randomUUID(),
    runId,
    kind: 'TRAIN_STEP',
    number: 0n,
    status: 'PENDING',
    batch: undefined,
    phase: '',
    modelUri: '',
    totalSubsteps: undefined,
    metadataJson: '',
    ...fields,
  };
}

/** Fields that the requests for runs and for branches of runs share. */
function newRunFields() {
  return {
    id: randomUUID(),
    name: '',
    description: '',
    configJson: '',
    removedConfigPaths: [],
    labels: new Map<string, string>(),
    metadataJson: '',
    plan: undefined,
    status: 'PENDING',
    heartbeatTimeoutMs: undefined,
    failWhenStale: false,
  } as const;
}

export function newRun(fields: Partial<NewRun> = {}): NewRun {
  return {
    ...newRunFields(),
    experiment: undefined,
    defaultExperimentId: randomUUID(),
    returnExisting: false,
    mainTrajectory: undefined,
    ...fields,
  };
}

/** A main trajectory to create, with its root as a step. */
type GivenMain = Partial<Omit<NewMainTrajectory, 'root'>> & { readonly root?: Step };

export function newMain({ root, ...fields }: GivenMain = {}): NewMainTrajectory {
  return { id: randomUUID(), uid: randomUUID(), taskId: '', root: root && packed(root), states: [], ...fields };
}

export function newRunBranch(sourceId: string, at: bigint | string, fields: Partial<NewRunBranch> = {}): NewRunBranch {
  return {
    ...newRunFields(),
    sourceId,
    at: typeof at === 'string' ? { tag: at } : { stepNumber: at },
    trajectoryId: randomUUID(),
    trajectoryUid: randomUUID(),
    ...fields,
  };
}

/**
 * A plan with a number of train steps of equally many substeps, so that these numbers alone determine the percentage.
 */
export function substepPlan(stages: number, substeps: number) {
  const stagePlan = { kind: 'TRAIN_STEP', stages, groupsPerStage: 0, groupSize: 0, maxTurns: 0, substeps } as const;
  return { stagePlans: [stagePlan], concurrency: 1 };
}
