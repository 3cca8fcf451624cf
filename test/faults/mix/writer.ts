import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import { OnBranches } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { appendBatch, uploadState } from '../../../src/client/index.ts';
import { ATTACHED, hasState, makeNode, type Node, stateOf, stepOf, withBranches } from './forest.ts';
import { count, type Mix, Refused, untilAnswered } from './mix.ts';

const MOST_STEPS = 30;
const MOST_TREES = 6;

type Act = (mix: Mix, trees: Node[]) => Promise<void>;

/**
 * Creates, branches, appends, attaches, seals and deletes trajectories of its own trees, at random, until the mix is
 * stopped.
 */
export async function write(mix: Mix): Promise<void> {
  const trees: Node[] = [];
  const appends = [append, append, append, append, appendAll];
  const acts: readonly Act[] = [create, ...appends, branch, branch, attach, put, seal, remove];
  while (!mix.stopped) {
    try {
      await mix.random.pick(trees.length === 0 ? [create] : acts)(mix, trees);
    } catch (error) {
      mix.violations.push(`a writer got an unexpected error: ${String((error as Error).cause ?? error)}`);
      return;
    }
  }
}

const create: Act = async (mix, trees) => {
  if (trees.length >= MOST_TREES) return;
  const node = makeNode();
  mix.nodes.push(node);
  trees.push(node);
  await once(mix, 'CreateTrajectory', 'TRAJECTORY_EXISTS', (options) =>
    mix.client.trajectories.createTrajectory({ trajectoryId: node.id, root: stepOf(node, 0) }, options),
  );
  node.end = 1;
  node.created = true;
};

const append: Act = async (mix, trees) => {
  const node = pickLive(mix, trees, (each) => !each.sealed && each.end < MOST_STEPS);
  if (node === undefined) return;
  const step = stepOf(node, node.end);
  await untilAnswered(mix, 'AppendStep', (options) =>
    mix.client.trajectories.appendStep({ trajectoryId: node.id, step }, options),
  );
  node.end += 1;
};

/** Appends to all trajectories by one message, which is sent again until all its entries are stored. */
const appendAll: Act = async (mix, trees) => {
  const nodes = live(trees).filter((each) => !each.sealed && each.end < MOST_STEPS);
  if (nodes.length === 0) return;
  const entries = nodes.map((node) => ({ trajectoryId: node.id, steps: [stepOf(node, node.end)] }));
  await untilAnswered(mix, 'AppendBatch', async (options) => {
    for (const result of await appendBatch(mix.client, entries, options)) if (!result.stored) throw result.error;
  });
  for (const node of nodes) node.end += 1;
};

const branch: Act = async (mix, trees) => {
  const parent = pickLive(mix, trees, (each) => each.end > each.branchPoint + 1);
  if (parent === undefined) return;
  // An own step, so that this trajectory is the parent.
  const branchPoint = mix.random.between(parent.branchPoint + 1, parent.end - 1);
  const node = makeNode(parent, branchPoint);
  parent.branches.push(node);
  mix.nodes.push(node);
  const request = { trajectoryId: parent.id, stepNumber: BigInt(branchPoint), branchId: node.id };
  await once(mix, 'BranchTrajectory', 'TRAJECTORY_EXISTS', (options) =>
    mix.client.trajectories.branchTrajectory(request, options),
  );
  node.created = true;
};

const attach: Act = async (mix, trees) => {
  const node = pickLive(mix, trees, (each) => each.end > each.branchPoint + 1);
  if (node === undefined) return;
  const stepNumber = mix.random.between(node.branchPoint + 1, node.end - 1);
  // A step has either the state without a name or named ones.
  const state = { name: ATTACHED, data: stateOf(node, stepNumber, ATTACHED) };
  await untilAnswered(mix, 'AttachState', (options) =>
    mix.client.trajectories.attachState({ trajectoryId: node.id, stepNumber: BigInt(stepNumber), state }, options),
  );
  node.attached.add(stepNumber);
};

/** Uploads the state of the next step, which then refers to it by digest. */
const put: Act = async (mix, trees) => {
  const node = pickLive(mix, trees, (each) => !each.sealed && each.end < MOST_STEPS && hasState(each.end));
  if (node === undefined) return;
  const digest = await uploadState(mix.client, stateOf(node, node.end, 'env'));
  count(mix, 'PutState');
  const step = stepOf(node, node.end, digest);
  await untilAnswered(mix, 'AppendStep', (options) =>
    mix.client.trajectories.appendStep({ trajectoryId: node.id, step }, options),
  );
  node.end += 1;
};

const seal: Act = async (mix, trees) => {
  const node = pickLive(mix, trees, (each) => !each.sealed && each.end > 5);
  if (node === undefined || mix.random.next() < 0.5) return;
  await untilAnswered(mix, 'SealTrajectory', (options) =>
    mix.client.trajectories.sealTrajectory({ trajectoryId: node.id, seal: { status: Status.COMPLETED } }, options),
  );
  node.sealed = true;
};

const remove: Act = async (mix, trees) => {
  const node = pickLive(mix, trees, () => true);
  if (node === undefined) return;
  const onBranches = mix.random.pick([OnBranches.REFUSE, OnBranches.CASCADE, OnBranches.KEEP_SHARED]);
  const kept = withBranches(node).filter((each) => each !== node && each.deletion === 'none');
  const refused = onBranches === OnBranches.REFUSE && kept.length > 0;
  const deleted = onBranches === OnBranches.CASCADE ? withBranches(node) : [node];
  if (!refused) for (const each of deleted) if (each.deletion === 'none') each.deletion = 'begun';
  const name = `DeleteTrajectory ${OnBranches[onBranches]}`;
  const outcome = await once(mix, name, 'TRAJECTORY_NOT_FOUND', (options) =>
    mix.client.trajectories.deleteTrajectory({ trajectoryId: node.id, onBranches }, options),
  ).then(
    () => 'OK',
    (error: unknown) => (error instanceof Refused ? error.reason : Promise.reject(error)),
  );
  if (outcome !== (refused ? 'HAS_BRANCHES' : 'OK')) {
    mix.violations.push(`${name} of ${node.id} with ${kept.length} remaining branches was answered ${outcome}`);
  }
  if (refused) return;
  for (const each of deleted) each.deletion = 'answered';
  // Unreachable trajectories need not be searched.
  for (const root of trees.filter((tree) => withBranches(tree).every(({ deletion }) => deletion !== 'none'))) {
    trees.splice(trees.indexOf(root), 1);
  }
};

function pickLive({ random }: Mix, trees: readonly Node[], fits: (node: Node) => boolean): Node | undefined {
  const fitting = live(trees).filter(fits);
  return fitting.length === 0 ? undefined : random.pick(fitting);
}

function live(trees: readonly Node[]): Node[] {
  return trees.flatMap(withBranches).filter(({ deletion }) => deletion === 'none');
}

/**
 * A call whose repetition is refused with this reason if an earlier attempt has succeeded. The first attempt must not
 * be refused.
 */
async function once(
  mix: Mix,
  rpc: string,
  doneBefore: string,
  call: (options: object) => Promise<unknown>,
): Promise<void> {
  let tries = 0;
  try {
    await untilAnswered(mix, rpc, (options) => {
      tries += 1;
      return call(options);
    });
  } catch (error) {
    if (!(error instanceof Refused) || error.reason !== doneBefore || tries === 1) throw error;
    count(mix, `${rpc}, done by a try without an answer`);
  }
}
