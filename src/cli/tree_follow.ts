import { create } from '@bufbuild/protobuf';
import { type TreeNode, WatchTreeResponseSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { type AnabranchClient, type TreePicture, watchTree } from '../client/index.ts';
import { printable, shortNumber } from './columns.ts';
import type { CliContext } from './context.ts';
import { type Forms, follow } from './follow.ts';
import { messageJson } from './json_text.ts';
import { statusName } from './status.ts';
import { getTrajectory } from './step_printer.ts';
import { drawTree } from './tree_drawing.ts';
import { trajectoryItems } from './tree_items.ts';

/** Shows a tree of trajectories while it changes. */
export async function followTree(
  cli: CliContext,
  client: AnabranchClient,
  treeId: string,
  { json, bars }: { readonly json?: true; readonly bars?: true },
): Promise<void> {
  const forms: Forms<TreePicture> = {
    json: ({ changed: { nodes, removedIds } }) => {
      if (nodes.length === 0 && removedIds.length === 0) return undefined;
      const message = create(WatchTreeResponseSchema, {
        nodes: [...nodes],
        removedIds: [...removedIds],
        caughtUp: true,
      });
      return messageJson(WatchTreeResponseSchema, message);
    },
    changes: ({ changed: { nodes, removedIds } }) => [
      ...nodes.map(changeOf),
      ...removedIds.map((id) => [id, `${id}: removed`] as const),
    ],
    screen: ({ nodes }, options) =>
      drawTree(trajectoryItems([...nodes.values()]), {
        ...options,
        noun: 'trajectory',
        beside: bars ? 'bars' : 'ids',
      }),
  };
  // A watch waits for an unreachable server. A wrong address or id must fail at once.
  await getTrajectory(client, treeId);
  await follow(cli, json === true, (onCut) => watchTree(client, { treeId, signal: cli.signal, onCut }), forms);
}

/** `ID gentle: running, 12 steps, reward 3` */
function changeOf({ trajectory, deleted }: TreeNode): readonly [string, string] {
  if (trajectory === undefined) return ['', ''];
  const { id, name, status, nextStepNumber, rewardSum } = trajectory;
  const state = deleted
    ? 'deleted'
    : `${statusName(status)}, ${nextStepNumber} steps, reward ${shortNumber(rewardSum)}`;
  return [id, `${id}${name === '' ? '' : ` ${printable(name)}`}: ${state}`];
}
