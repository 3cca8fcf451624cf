import { RunSchema, type Run as WireRun } from '../../../gen/es/anabranch/v1/run_pb.js';
import { RunService } from '../../../gen/es/anabranch/v1/run_service_pb.js';
import { IfExists } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import type { Caller } from '../../domain/caller.ts';
import { invalidField, runNotFound } from '../../domain/errors.ts';
import { ANSWER_BYTES } from '../../domain/limits.ts';
import { DEFAULT_EXPERIMENT, type Run, type Stage } from '../../domain/run.ts';
import { BRANCH_CONFIG, ROOT_CONFIG } from '../../domain/run_config.ts';
import type { RunDeletion } from '../../store/contract/experiment.ts';
import type { CreatedRun } from '../../store/contract/run.ts';
import type { StageFilter } from '../../store/contract/stage.ts';
import type { App } from '../../stream/app.ts';
import { sizerOf } from '../answer/message.ts';
import { pageOf } from '../answer/page.ts';
import { toBranchPolicy, toStepReference, toView } from '../convert/values.ts';
import type { SomeMethods } from '../method.ts';
import { idempotencyKeyOf } from '../request/digest.ts';
import { pageArgsOf } from '../request/page_token.ts';
import { stageBytes, stageMessage } from '../stage/stage.ts';
import { trajectoryBytes } from '../trajectory/list.ts';
import { fromTrajectory } from '../trajectory/messages.ts';
import { toRoot } from '../trajectory/single_step.ts';
import { compareRuns } from './comparison.ts';
import { listRuns } from './list.ts';
import { fromRun, progressBytes, progressesOf } from './messages.ts';
import { requireNewName, toExperimentReference, toNewRunFields, toRunChanges } from './requests.ts';

const rpc = RunService.method;
const runBytes = sizerOf(RunSchema);

export const runMethods = {
  async createRun(request, { app, caller }) {
    const { runId, experimentName, mainTrajectory } = request;
    const own = { configJson: request.configJson, field: ROOT_CONFIG.own };
    const returnExisting = request.ifExists === IfExists.RETURN_EXISTING;
    if (returnExisting && request.name === '') {
      throw invalidField('name', 'must be set when if_exists is RETURN_EXISTING, which finds the run by its name');
    }
    const reference = toExperimentReference(request);
    const newRun = {
      ...toNewRunFields(request, runId || app.ids.uuid(), own, 'PENDING'),
      // Undefined creates the experiment `default` if it is missing, also for requests that name it.
      experiment: experimentName === DEFAULT_EXPERIMENT ? undefined : reference,
      defaultExperimentId: app.ids.uuid(),
      returnExisting,
      mainTrajectory: mainTrajectory && {
        id: mainTrajectory.trajectoryId || app.ids.uuid(),
        uid: app.ids.uid(),
        taskId: mainTrajectory.taskId,
        ...toRoot(mainTrajectory.root, 'main_trajectory.root'),
      },
    };
    const result = await app.store.createRun(caller, newRun, idempotencyKeyOf(rpc.createRun, request));
    // A run that was created just now has no stages yet (C-33).
    const resumeStage = result.created ? undefined : await stageToResume(app, caller, result.run.id);
    return { ...fromCreated(result, resumeStage), created: result.created };
  },

  async branchRun(request, { app, caller }) {
    const own = { configJson: request.configOverridesJson, field: BRANCH_CONFIG.own };
    const newBranch = {
      ...toNewRunFields(request, request.branchId || app.ids.uuid(), own, 'RUNNING'),
      sourceId: request.runId,
      at: toStepReference(request),
      trajectoryId: request.branchTrajectoryId || app.ids.uuid(),
      trajectoryUid: app.ids.uid(),
    };
    const key = idempotencyKeyOf(rpc.branchRun, request);
    return fromCreated(await app.store.branchRun(caller, newBranch, key), undefined);
  },

  async getRun({ runId, runName: name = '', experimentName, view, progress: withProgress }, { app, caller }) {
    if (runId !== undefined && experimentName !== '') {
      throw invalidField('experiment_name', 'must be empty when run_id is set: it is used only with run_name');
    }
    const reference =
      runId === undefined ? { name, experimentName: experimentName || DEFAULT_EXPERIMENT } : { id: runId };
    const found = await app.store.getRun(caller.namespace, reference);
    if (found === undefined) throw runNotFound(runId ?? name);
    const run = fromRun(found, toView(view, 'FULL'));
    if (!withProgress) return { run };
    const [progress] = await progressesOf(app, caller, [found]);
    return { run: fitting(run, found, progress ? progressBytes(progress) : 0), progress };
  },

  listRuns,

  /** Labels are replaced, metrics merged by key (FM7). */
  async updateRun(request, { app, caller }) {
    const changes = toRunChanges(request);
    requireNewName(changes);
    return { run: fromRun(await app.store.updateRun(caller.namespace, request.runId, changes), 'FULL') };
  },

  async deleteRun({ runId, onBranches, cancelLive }, { app, caller }) {
    const policy = toBranchPolicy(onBranches);
    return forgetDeleted(app, await app.store.deleteRun(caller.namespace, runId, policy, cancelLive));
  },

  /** Lists each parent before its branches, at any depth: one tree, or all trees of an experiment. */
  async getRunTree(request, { app, caller }) {
    const { runId, experimentId } = request;
    const { namespace } = caller;
    const page = await pageOf(pageArgsOf({ app, caller }, rpc.getRunTree, request), {
      view: 'BASIC',
      fetch: async (rows) => {
        if (experimentId !== '') return app.store.listRunTrees(namespace, experimentId, rows);
        const runs = await app.store.listRunTree(namespace, runId, rows);
        if (runs === undefined) throw runNotFound(runId);
        return runs;
      },
      keyOf: ({ key }) => key,
      show: (row) => fromRun(row, 'BASIC'),
      bytesOf: runBytes,
    });
    return { runs: page.items, nextPageToken: page.nextPageToken };
  },

  compareRuns: (request, { app, caller }) => compareRuns(app, caller, request),
} satisfies SomeMethods<typeof RunService>;

const CHECKPOINTED: StageFilter = {
  kinds: ['TRAIN_STEP'],
  statuses: ['COMPLETED'],
  hasCheckpoint: true,
  byNumber: true,
  descending: true,
};

async function stageToResume({ store }: App, { namespace }: Caller, runId: string): Promise<Stage | undefined> {
  const [latest] = await store.listStages(namespace, runId, CHECKPOINTED, { limit: 1, after: undefined }, 'BASIC');
  return latest;
}

/** Returns the run, or its BASIC view if the response would be too large (RD3). */
function fitting(run: WireRun, row: Run, otherBytes: number): WireRun {
  return runBytes(run) + otherBytes > ANSWER_BYTES ? fromRun(row, 'BASIC') : run;
}

function fromCreated({ run: row, mainTrajectory: main }: CreatedRun, resumable: Stage | undefined) {
  const mainTrajectory = main && fromTrajectory(main, 'BASIC');
  const resumeStage = resumable && stageMessage(resumable, 'BASIC');
  const others = (mainTrajectory ? trajectoryBytes(mainTrajectory) : 0) + (resumeStage ? stageBytes(resumeStage) : 0);
  return { run: fitting(fromRun(row, 'FULL'), row, others), mainTrajectory, resumeStage };
}

/** Forgets what was deleted with a run or experiment, and has its rows purged (B4). */
export function forgetDeleted(app: App, { trajectoryKeys, runs, trajectories }: RunDeletion) {
  for (const key of trajectoryKeys) app.lineages.forget(key);
  app.maintenance.purgeSoon();
  return { deletedRuns: runs, deletedTrajectories: trajectories };
}
