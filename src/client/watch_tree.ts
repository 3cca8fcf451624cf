import { equals } from '@bufbuild/protobuf';
import { type TreeNode, TreeNodeSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { type WatchCalls, type WatchedOptions, watchedStream } from './watched_stream.ts';

/** Options of watchTree(). */
export type TreeWatchOptions = WatchedOptions &
  (
    | {
        /** Id of any trajectory of the tree: all its trajectories are watched, those created later included. */
        readonly treeId: string;
      }
    | {
        /** Ids of the trajectories to watch, of any trees. At most 20. */
        readonly trajectoryIds: readonly string[];
      }
  );

/** An immutable snapshot of the watched trajectories. */
export interface TreePicture {
  /** Trajectories by id, as GetTree returns them. */
  readonly nodes: ReadonlyMap<string, TreeNode>;
  /** Differences from the previous picture. In the first picture, everything. */
  readonly changed: { readonly nodes: readonly TreeNode[]; readonly removedIds: readonly string[] };
}

/**
 * Watches the trajectories of a tree, or some trajectories. Yields the whole picture, and again after every change and
 * every reconnect (rule M5). Throws permanent errors, and DEADLINE_EXCEEDED after `giveUpAfterMs` without a message.
 *
 *     for await (const { nodes, changed } of watchTree(client, { treeId })) console.log(nodes.size, changed.nodes);
 */
export async function* watchTree(
  client: WatchCalls,
  options: TreeWatchOptions,
): AsyncGenerator<TreePicture, void, undefined> {
  const tree = 'treeId' in options ? { treeId: options.treeId } : { trajectoryIds: [...options.trajectoryIds] };
  let nodes = new Map<string, TreeNode>();
  const fresh = new Map<string, TreeNode>();
  const removed = new Set<string>();
  /** Trajectories that the snapshot of this call has not sent yet. Undefined after the snapshot. */
  let unseen: Set<string> | undefined;
  const begin = () => {
    unseen = new Set(nodes.keys());
  };
  for await (const { tree: changes, caughtUp } of watchedStream(client, options, { tree }, begin)) {
    if (changes === undefined) continue;
    const next = new Map(nodes);
    for (const node of changes.nodes) {
      const id = node.trajectory?.id ?? '';
      unseen?.delete(id);
      const known = nodes.get(id);
      if (known !== undefined && equals(TreeNodeSchema, known, node)) continue;
      next.set(id, node);
      fresh.set(id, node);
      removed.delete(id);
    }
    for (const id of [...changes.removedIds, ...(caughtUp ? (unseen ?? []) : [])]) {
      fresh.delete(id);
      if (next.delete(id)) removed.add(id);
    }
    nodes = next;
    if (!caughtUp) continue;
    const isSnapshot = unseen !== undefined;
    unseen = undefined;
    if (!isSnapshot && fresh.size === 0 && removed.size === 0) continue;
    const changed = { nodes: [...fresh.values()], removedIds: [...removed] };
    fresh.clear();
    removed.clear();
    yield { nodes, changed };
  }
}
