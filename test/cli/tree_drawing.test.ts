import { stripVTControlCharacters } from 'node:util';
import { create, type MessageInitShape } from '@bufbuild/protobuf';
import fc from 'fast-check';
import pc from 'picocolors';
import { describe, expect, it } from 'vitest';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import type { TrajectorySchema } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { type TreeNode, TreeNodeSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { widthOf } from '../../src/cli/columns.ts';
import { type DrawingOptions, drawTree, trajectoryItems } from '../../src/cli/tree_drawing.ts';

const id = (n: number) => `01990000-0000-7000-8000-${n.toString(16).padStart(12, '0')}`;

function node(n: number, trajectory: MessageInitShape<typeof TrajectorySchema>, deleted = false): TreeNode {
  return create(TreeNodeSchema, {
    trajectory: { id: id(n), treeId: id(1), status: Status.COMPLETED, ...trajectory },
    deleted,
  });
}

/** Answers are in order of creation; here a branch of a branch was created before a branch of the root. */
const TREE = [
  node(1, { name: 'CartPole-v1, seed 7', nextStepNumber: 501n, rewardSum: 500 }),
  node(2, { name: 'hasty', parentId: id(1), branchPoint: 200n, nextStepNumber: 501n, rewardSum: 500 }),
  node(3, {
    name: 'angle only',
    parentId: id(1),
    branchPoint: 200n,
    nextStepNumber: 247n,
    rewardSum: 246,
    status: Status.FAILED,
  }),
  node(4, {
    name: 'calmer',
    parentId: id(2),
    branchPoint: 333n,
    nextStepNumber: 420n,
    rewardSum: 419.25,
    status: Status.RUNNING,
  }),
  node(5, { parentId: id(4), branchPoint: 400n, nextStepNumber: 401n, status: Status.CANCELLED }),
  node(6, { name: 'early', parentId: id(1), branchPoint: 0n, nextStepNumber: 91n }, true),
];

const PLAIN: DrawingOptions = { noun: 'trajectory', columns: 80, beside: 'ids', paint: pc.createColors(false) };
const draw = (nodes: readonly TreeNode[], options: Partial<DrawingOptions> = {}) =>
  `\n${drawTree(trajectoryItems(nodes), { ...PLAIN, ...options }).join('\n')}\n`;

describe('the drawing of a tree', () => {
  it('shows branches below their parents, in order of branch point, with their ids', () => {
    expect(draw(TREE)).toMatchInlineSnapshot(`
      "
      trajectory          id                                   steps reward status
      CartPole-v1, seed 7 01990000-0000-7000-8000-000000000001   501    500 completed
      ├─@0 early          01990000-0000-7000-8000-000000000006    91      – deleted
      ├─@200 hasty        01990000-0000-7000-8000-000000000002   501    500 completed
      │ └─@333 calmer     01990000-0000-7000-8000-000000000004   420 419.25 running
      │   └─@400 –        01990000-0000-7000-8000-000000000005   401      0 cancelled
      └─@200 angle only   01990000-0000-7000-8000-000000000003   247    246 failed
      "
    `);
  });

  it('shows with bars which trajectory owns which steps', () => {
    expect(draw(TREE, { beside: 'bars' })).toMatchInlineSnapshot(`
      "
                                                                steps reward status
      CartPole-v1, seed 7      ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━   501    500 completed
      ├─@0 early               ┗━━━━                               91      – deleted
      ├─@200 hasty                         ┗━━━━━━━━━━━━━━━━━━━   501    500 completed
      │ └─@333 calmer                               ┗━━━━         420 419.25 running
      │   └─@400 …000000000005                          ┗         401      0 cancelled
      └─@200 angle only                    ┗━━                    247    246 failed
      "
    `);
  });

  it('with colours shows the same text as without', () => {
    const coloured = draw(TREE, { paint: pc.createColors(true) });
    expect(coloured).not.toBe(draw(TREE));
    expect(stripVTControlCharacters(coloured)).toBe(draw(TREE));
  });

  it('removes control characters from names', () => {
    const evil = draw([node(1, { name: 'a\u001b[2Jb\r\nc\u202Ed', nextStepNumber: 1n })]);
    expect(evil).toContain('a [2Jb c d');
  });

  it('draws a tree deeper than the call stack', () => {
    const chain = Array.from({ length: 13_000 }, (_, i) => {
      const parent = i === 0 ? {} : { parentId: id(i), branchPoint: BigInt(i) };
      return node(i + 1, { name: `b${i}`, nextStepNumber: BigInt(i + 2), ...parent });
    });
    const lines = drawTree(trajectoryItems(chain), PLAIN);
    expect(lines).toHaveLength(13_001);
    expect(lines.at(-1)).toMatch(/^⋯12999└─@12999 b129… 0199/);
  });

  it('is never wider than requested, whatever the names, numbers and depth', () => {
    const trajectory = fc.record({
      name: fc.oneof(
        fc.string({ unit: 'grapheme' }),
        fc.constant('日本語の軌跡'),
        fc.constant('🤖🤖🤖🤖🤖🤖🤖🤖🤖🤖🤖🤖'),
      ),
      parent: fc.nat(),
      nextStepNumber: fc.bigInt(0n, 10n ** 12n),
      rewardSum: fc.double(),
      deleted: fc.boolean(),
    });
    const tree = fc.array(trajectory, { minLength: 1, maxLength: 30 }).map((list) =>
      list.map(({ parent, deleted, ...own }, i) => {
        const above = i === 0 ? {} : { parentId: id((parent % i) + 1), branchPoint: BigInt(parent) };
        return node(i + 1, { ...own, ...above }, deleted);
      }),
    );
    const shape = fc.tuple(tree, fc.constantFrom('ids', 'bars'), fc.integer({ min: 76, max: 80 }));
    fc.assert(
      fc.property(shape, ([nodes, beside, columns]) => {
        const lines = drawTree(trajectoryItems(nodes), { ...PLAIN, beside, columns });
        expect(lines).toHaveLength(nodes.length + 1);
        for (const line of lines) expect(widthOf(line)).toBeLessThanOrEqual(columns);
      }),
    );
  });
});
