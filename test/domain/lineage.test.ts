import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { clipRanges, type Link, type OwnedRange, ownerOf, rangesOf, sharedSteps } from '../../src/domain/lineage.ts';

/**
 * The naive model: a trajectory is a list of its steps, each with the key of its owner, and a branch is a copy of the
 * front of the list. The results of the arithmetic on ranges must equal those on lists.
 */
interface Naive {
  readonly chain: readonly Link[];
  /** The owner of each step; its index is the step's number. */
  readonly owners: readonly bigint[];
}

function root(key: bigint, own: number): Naive {
  return { chain: [{ key, branchPoint: undefined }], owners: Array<bigint>(own).fill(key) };
}

/** A branch at step n: the parent is the owner of n, so the chain is cut after the owner. */
function branch(source: Naive, n: number, key: bigint, own: number): Naive {
  const owner = source.owners[n];
  const cut = source.chain.findIndex((link) => link.key === owner);
  return {
    chain: [...source.chain.slice(0, cut + 1), { key, branchPoint: BigInt(n) }],
    owners: [...source.owners.slice(0, n + 1), ...Array<bigint>(own).fill(key)],
  };
}

function ranges({ chain, owners }: Naive): OwnedRange[] {
  return rangesOf(chain, BigInt(owners.length));
}

function expand(parts: readonly OwnedRange[]): [bigint, bigint][] {
  return parts.flatMap(({ key, from, to }) =>
    Array.from({ length: Number(to - from) }, (_, i): [bigint, bigint] => [from + BigInt(i), key]),
  );
}

function listed({ owners }: Naive, from = 0, to = owners.length): [bigint, bigint][] {
  return owners.map((key, i): [bigint, bigint] => [BigInt(i), key]).slice(from, to);
}

/**
 * Every tree of up to `size` trajectories with 0 to 2 own steps (a root 1 to 3), branched at every step of every
 * earlier one.
 */
function* trees(size: number): Generator<Naive[]> {
  for (let own = 1; own <= 3; own += 1) yield* grown([root(1n, own)], size);
}

function* grown(tree: readonly Naive[], size: number): Generator<Naive[]> {
  yield [...tree];
  if (tree.length === size) return;
  for (const source of tree)
    for (let n = 0; n < source.owners.length; n += 1)
      for (let own = 0; own <= 2; own += 1)
        yield* grown([...tree, branch(source, n, BigInt(tree.length + 1), own)], size);
}

describe('lineage arithmetic, exhaustively over small trees', () => {
  it('O2: ranges equal the naive copy, in order and without a gap', () => {
    let seen = 0;
    for (const tree of trees(4)) {
      const last = tree.at(-1) as Naive;
      expect(expand(ranges(last))).toEqual(listed(last));
      seen += 1;
    }
    expect(seen).toBeGreaterThan(5_000);
  });

  it('B1: every ancestor owns a step of the lineage; only the trajectory itself may own none', () => {
    for (const tree of trees(4)) {
      const parts = ranges(tree.at(-1) as Naive);
      for (const [i, { from, to }] of parts.entries()) {
        if (i < parts.length - 1) expect(from < to).toBe(true);
        else expect(from <= to).toBe(true);
      }
    }
  });

  it('RD1: a clipped range equals the slice of the copy, for any start and end', () => {
    for (const tree of trees(3)) {
      const last = tree.at(-1) as Naive;
      const end = last.owners.length;
      for (let from = 0; from <= end + 1; from += 1)
        for (let to = 0; to <= end + 1; to += 1) {
          const clipped = clipRanges(ranges(last), BigInt(from), BigInt(to));
          expect(expand(clipped)).toEqual(listed(last, from, to));
          expect(clipped.every((part) => part.from < part.to)).toBe(true);
        }
    }
  });

  it('B1: the owner of a step is that of the copy; below 0 and from the end on there is none', () => {
    for (const tree of trees(3)) {
      const last = tree.at(-1) as Naive;
      for (let n = 0; n < last.owners.length; n += 1) expect(ownerOf(ranges(last), BigInt(n))).toBe(last.owners[n]);
      expect(ownerOf(ranges(last), -1n)).toBeUndefined();
      expect(ownerOf(ranges(last), BigInt(last.owners.length))).toBeUndefined();
    }
  });

  it('RD5: two lineages share what their copies share, in either order', () => {
    for (const tree of trees(4))
      for (const other of tree) {
        const last = tree.at(-1) as Naive;
        const differ = last.owners.findIndex((key, i) => key !== other.owners[i]);
        const shared = BigInt(differ === -1 ? last.owners.length : differ);
        expect(sharedSteps(ranges(last), ranges(other))).toBe(shared);
        expect(sharedSteps(ranges(other), ranges(last))).toBe(shared);
      }
  });
});

describe('lineage arithmetic', () => {
  const parent = branch(root(1n, 10), 4, 2n, 5); // 0..4 of the root, 5..9 its own

  it.each([
    ['before the first own step of its source: the parent is the grandparent', 2, [1n, 3n]],
    ['at the branch point of its source: the parent is the grandparent', 4, [1n, 3n]],
    ['at the first own step of its source', 5, [1n, 2n, 3n]],
    ['at the last step of its source', 9, [1n, 2n, 3n]],
  ])('B1: a branch %s', (_, n, keys) => {
    const child = branch(parent, n, 3n, 1);
    expect(child.chain.map(({ key }) => key)).toEqual(keys);
    expect(expand(ranges(child))).toEqual(listed(child));
  });

  it('RD5: unrelated lineages share nothing', () => {
    expect(sharedSteps(ranges(root(1n, 3)), ranges(root(2n, 3)))).toBe(0n);
    expect(sharedSteps([], ranges(root(2n, 3)))).toBe(0n);
  });

  it('O2: numbers above 2^53 are handled exactly', () => {
    const n = 2n ** 53n;
    const chain = [
      { key: 1n, branchPoint: undefined },
      { key: 2n, branchPoint: n },
    ];
    const parts = rangesOf(chain, n + 3n);
    expect(parts).toEqual([
      { key: 1n, from: 0n, to: n + 1n },
      { key: 2n, from: n + 1n, to: n + 3n },
    ]);
    expect(ownerOf(parts, n)).toBe(1n);
    expect(ownerOf(parts, n + 1n)).toBe(2n);
    expect(clipRanges(parts, n, n + 2n)).toEqual([
      { key: 1n, from: n, to: n + 1n },
      { key: 2n, from: n + 1n, to: n + 2n },
    ]);
  });

  it('O2: deep trees of any shape give the same result as the copy', () => {
    const growth = fc.array(fc.tuple(fc.nat(), fc.nat(), fc.nat(4)), { minLength: 1, maxLength: 60 });
    fc.assert(
      fc.property(growth, fc.nat(), fc.nat(), (branches, a, b) => {
        const tree = [root(1n, 4)];
        for (const [pick, n, own] of branches) {
          const source = tree[pick % tree.length] as Naive;
          tree.push(branch(source, n % source.owners.length, BigInt(tree.length + 1), own));
        }
        const one = tree[a % tree.length] as Naive;
        const last = tree.at(-1) as Naive;
        expect(expand(ranges(last))).toEqual(listed(last));
        const from = b % (last.owners.length + 1);
        expect(expand(clipRanges(ranges(last), BigInt(from), BigInt(from + 3)))).toEqual(listed(last, from, from + 3));
        const differ = one.owners.findIndex((key, i) => key !== last.owners[i]);
        expect(sharedSteps(ranges(one), ranges(last))).toBe(BigInt(differ === -1 ? one.owners.length : differ));
      }),
    );
  });
});
