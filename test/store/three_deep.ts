import type { Scene } from './scene.ts';

/**
 * A root of a0 … a5, a branch at 3 with b4 b5, and a branch of that one at 4 with c5 c6: three owners in one lineage.
 */
export async function threeDeep(scene: Scene) {
  const root = await scene.createWith(['a0', 'a1', 'a2', 'a3', 'a4', 'a5']);
  const middle = await scene.branch(root, 3n);
  await scene.appendWords(middle, ['b4', 'b5']);
  const leaf = await scene.branch(middle, 4n);
  await scene.appendWords(leaf, ['c5', 'c6']);
  return { root, middle, leaf: await scene.get(leaf.id), lineage: await scene.lineage(leaf) };
}

/** The words of the leaf's steps. */
export const WORDS = ['a0', 'a1', 'a2', 'a3', 'b4', 'c5', 'c6'];
