import { TagSchema, type Tag as WireTag } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import { TrajectoryService, TreeNodeSchema } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { Caller } from '../../domain/caller.ts';
import { AnabranchError, trajectoryNotFound } from '../../domain/errors.ts';
import { LIMITS } from '../../domain/limits.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { Page } from '../../store/contract/request.ts';
import type { Tag } from '../../store/contract/trajectory.ts';
import type { App } from '../../stream/app.ts';
import { findTrajectory, requireStillThere } from '../../stream/find.ts';
import { sizerOf } from '../answer/message.ts';
import { pageByKey, pageOf } from '../answer/page.ts';
import { required, toView } from '../convert/values.ts';
import type { Methods } from '../method.ts';
import { idempotencyKeyOf } from '../request/digest.ts';
import { pageArgsOf, pageLimit } from '../request/page_token.ts';
import { compareTrajectories, requireListRange } from './comparison.ts';
import { toNewBranch, toNewTrajectory } from './creation.ts';
import { listTrajectories } from './list.ts';
import { fromTag, fromTrajectory, treeNode } from './messages.ts';
import { toOnBranches, toTrajectoryChanges } from './requests.ts';

const rpc = TrajectoryService.method;

const treeNodeBytes = sizerOf(TreeNodeSchema);

/** Methods of whole trajectories: create, branch, get, list, update, delete, lineage, tree, comparison. */
export const trajectoryMethods: Methods<
  typeof TrajectoryService,
  | 'createTrajectory'
  | 'branchTrajectory'
  | 'getTrajectory'
  | 'listTrajectories'
  | 'updateTrajectory'
  | 'deleteTrajectory'
  | 'getLineage'
  | 'getTree'
  | 'compareTrajectories'
> = {
  async createTrajectory(request, { app, caller }) {
    const key = idempotencyKeyOf(rpc.createTrajectory, request);
    const created = await app.store.createTrajectory(caller, toNewTrajectory(app, request), key);
    return { trajectory: fromTrajectory(created, 'FULL') };
  },

  /** The parent is the owner of the step (B1). */
  async branchTrajectory(request, { app, caller }) {
    const key = idempotencyKeyOf(rpc.branchTrajectory, request);
    const created = await app.store.branchTrajectory(caller, toNewBranch(app, request), key);
    return { trajectory: fromTrajectory(created, 'FULL') };
  },

  async getTrajectory({ trajectoryId, view }, { app, caller }) {
    const found = await findTrajectory(app, caller, trajectoryId);
    return { trajectory: fromTrajectory(found, toView(view, 'FULL')) };
  },

  listTrajectories,

  /** Labels are replaced, metrics merged by key (FM7). */
  async updateTrajectory(request, { app, caller }) {
    const changes = toTrajectoryChanges(request);
    const now = await app.store.updateTrajectory(caller.namespace, request.trajectoryId, changes);
    return { trajectory: fromTrajectory(now, 'FULL') };
  },

  /**
   * Followers receive TRAJECTORY_DELETED as soon as the trajectory is hidden. If the call ends before the last row is
   * removed, maintenance removes the rest (B2).
   */
  async deleteTrajectory({ trajectoryId, onBranches }, { app, caller }) {
    try {
      const deletion = await app.store.deleteTrajectory(caller.namespace, trajectoryId, toOnBranches(onBranches));
      for (const key of deletion.keys) app.lineages.forget(key);
      return { purgedTrajectories: deletion.purged, keptShared: deletion.keptShared };
    } catch (error) {
      if (!deletesNothing(error)) app.maintenance.purgeSoon();
      throw error;
    }
  },

  /** Lists the owners of all steps, from the root on. The last range is the trajectory's own and may be empty. */
  async getLineage(request, { app, caller }) {
    const trajectory = await findTrajectory(app, caller, request.trajectoryId);
    const { pageSize, pageToken, tokens } = pageArgsOf({ app, caller }, rpc.getLineage, request, trajectory.ref.key);
    const begin = (await tokens.open(pageToken, ([end]) => Number(end))) ?? 0;
    const lineage = await app.lineages.whole(app.store, caller.namespace, trajectory);
    const end = begin + pageLimit(pageSize);
    const page = lineage.slice(begin, end);
    // Owners are not cached: ancestors can be renamed and deleted.
    const keys = page.map(({ key }) => key);
    const owners = await app.store.getOwners(caller.namespace, trajectory.ref.tree, keys);
    if (lineage.length === 0 || owners.size < page.length) throw trajectoryNotFound(trajectory.id);
    const shown = page.map(({ key, from, to }) => {
      const { id, name, hidden } = owners.get(key)!;
      return { trajectoryId: id, name, startStepNumber: from, endStepNumber: to, deleted: hidden };
    });
    return { segments: shown, nextPageToken: end < lineage.length ? await tokens.seal([`${end}`]) : '' };
  },

  /** Lists each parent before its branches. Includes deleted trajectories whose steps are shared. */
  async getTree(request, { app, caller }) {
    const trajectory = await findTrajectory(app, caller, request.trajectoryId);
    const { tree } = trajectory.ref;
    // A page token is valid for all trajectories of the tree.
    const args = pageArgsOf({ app, caller }, rpc.getTree, { ...request, trajectoryId: '' }, tree);
    const page = await pageOf(args, {
      view: 'BASIC',
      fetch: (rows) => readNodes(app, caller, tree, rows),
      keyOf: ({ key }) => key,
      show: ({ node }) => node,
      bytesOf: treeNodeBytes,
    });
    if (page.items.length === 0) await requireStillThere(app, caller, trajectory);
    return { nodes: page.items, nextPageToken: page.nextPageToken };
  },

  async compareTrajectories(request, { app, caller }) {
    requireListRange(request, LIMITS.compareSteps);
    const one = await findTrajectory(app, caller, request.trajectoryId);
    const other = await findTrajectory(app, caller, request.otherTrajectoryId);
    return compareTrajectories(app, caller, one, other, request);
  },
};

/** Reads a page of a tree with the gains and tags of its trajectories. */
async function readNodes({ store }: App, { namespace }: Caller, tree: bigint, page: Page<bigint>) {
  const rows = await store.listTree(namespace, tree, page);
  const visible = rows.filter(({ hidden }) => !hidden);
  const branches = visible.filter(({ parent }) => parent !== undefined);
  const keysOf = (of: readonly Trajectory[]) => of.map(({ ref }) => ref.key);
  const [gains, tags] = await Promise.all([
    store.readGains(namespace, tree, keysOf(branches)),
    store.readTreeTags(namespace, tree, keysOf(visible)),
  ]);
  return rows.map((row) => {
    const { key } = row.ref;
    return { key, node: treeNode(row, gains.get(key), tags.get(key)) };
  });
}

/** Whether the deletion was rejected before it changed anything. */
function deletesNothing(error: unknown): boolean {
  return (
    error instanceof AnabranchError && (error.reason === 'TRAJECTORY_NOT_FOUND' || error.reason === 'HAS_BRANCHES')
  );
}

const tagBytes = sizerOf(TagSchema);

/** Tags of steps (B5). */
export const tagMethods: Methods<typeof TrajectoryService, 'setTag' | 'listTags' | 'deleteTag'> = {
  async setTag({ trajectoryId, name, stepNumber, expectedStepNumber }, { app, caller }) {
    const at = required(stepNumber, 'step_number');
    return { tag: fromTag(await app.store.setTag(caller.namespace, trajectoryId, name, at, expectedStepNumber)) };
  },

  /** Lists tags by name, in the order of bytes. */
  async listTags(request, { app, caller }) {
    const { trajectoryId, name } = request;
    const page = await pageByKey<Tag, WireTag, string>(pageArgsOf({ app, caller }, rpc.listTags, request), {
      fetch: (rows) => app.store.listTags(caller.namespace, trajectoryId, rows, name === '' ? undefined : name),
      keyOf: (tag) => tag.name,
      readKey: ([last]) => last!,
      show: fromTag,
      bytesOf: tagBytes,
    });
    return { tags: page.items, nextPageToken: page.nextPageToken };
  },

  async deleteTag({ trajectoryId, name }, { app, caller }) {
    await app.store.deleteTag(caller.namespace, trajectoryId, name);
    return {};
  },
};
