import fc from 'fast-check';
import { isObject, type Json, parseJson } from '../../src/domain/json.ts';

/** A config in the model: JSON text of a value that is no object, or the entries of an object. */
export type Tree = string | Entries;
export type Entries = readonly (readonly [key: string, value: Tree])[];

/** Numbers whose text has more digits than JavaScript would write. */
export const NUMBERS = [
  '9007199254740993',
  '123456789012345678901234567890',
  '1e400',
  '-1E-400',
  '1.0',
  '-0',
  '0.10',
  '1E5',
] as const;

const KEYS = ['a', 'b', 'c/d', '~1', '', '0', '__proto__', 'constructor'] as const;
const LEAVES = ['null', 'true', '"a"', '[]', '[{"a":null},1.0]', '12', ...NUMBERS] as const;

/** Few keys, so that two configs often share some. */
export const arbitraryConfig: fc.Arbitrary<Entries> = fc.letrec<{ tree: Tree; entries: Entries }>((tie) => ({
  tree: fc.oneof({ depthSize: 'medium' }, fc.constantFrom(...LEAVES), tie('entries')),
  entries: fc.uniqueArray(fc.tuple(fc.constantFrom(...KEYS), tie('tree')), { maxLength: 5, selector: ([key]) => key }),
})).entries;

export function textOf(tree: Tree): string {
  if (typeof tree === 'string') return tree;
  return `{${tree.map(([key, value]) => `${JSON.stringify(key)}:${textOf(value)}`).join(',')}}`;
}

/** Values that are no objects, and empty objects, keyed by their path as JSON text. */
export type Leaves = ReadonlyMap<string, string>;

export function leavesOf(tree: Tree): Leaves {
  return new Map(pathsAndLeaves(tree, []));
}

export function leavesOfText(text: string): Leaves {
  return leavesOf(treeOf(parseJson(text)));
}

/** Paths of all keys of a config, including those whose value is an object. */
export function keyPathsOf(tree: Tree): string[][] {
  if (typeof tree === 'string') return [];
  return tree.flatMap(([key, value]) => [[key], ...keyPathsOf(value).map((path) => [key, ...path])]);
}

/** M4, leaf by leaf: each leaf of `own` replaces the leaves at its path, below it and above it. */
export function mergedLeaves(base: Leaves, own: Leaves): Leaves {
  const merged = new Map(base);
  for (const [at, text] of own) {
    const path = JSON.parse(at) as string[];
    if (text === '{}' && hasObjectAt(merged, path)) continue;
    for (const other of [...merged.keys()].map((key) => JSON.parse(key) as string[])) {
      if (isWithin(path, other) || isWithin(other, path)) merged.delete(JSON.stringify(other));
    }
    merged.set(at, text);
  }
  return merged;
}

/** The leaves, without those at or below the paths. An object that loses its last key stays, without keys. */
export function leavesWithout(base: Leaves, paths: readonly (readonly string[])[]): Leaves {
  const left = new Map(base);
  for (const path of paths) {
    if (!hasKeyAt(left, path)) continue;
    for (const other of [...left.keys()].map((key) => JSON.parse(key) as string[])) {
      if (isWithin(other, path)) left.delete(JSON.stringify(other));
    }
    const above = path.slice(0, -1);
    if (![...left.keys()].some((key) => isWithin(JSON.parse(key) as string[], above))) {
      left.set(JSON.stringify(above), '{}');
    }
  }
  return left;
}

/** Whether a path equals another one, or is below it. */
function isWithin(path: readonly string[], above: readonly string[]): boolean {
  return above.every((key, i) => path[i] === key);
}

function hasObjectAt(leaves: Leaves, path: readonly string[]): boolean {
  const below = [...leaves.keys()].map((key) => JSON.parse(key) as string[]).filter((other) => isWithin(other, path));
  return leaves.get(JSON.stringify(path)) === '{}' || below.some((other) => other.length > path.length);
}

function hasKeyAt(leaves: Leaves, path: readonly string[]): boolean {
  return [...leaves.keys()].some((key) => isWithin(JSON.parse(key) as string[], path));
}

function pathsAndLeaves(tree: Tree, path: readonly string[]): [string, string][] {
  if (typeof tree === 'string') return [[JSON.stringify(path), tree]];
  if (tree.length === 0) return [[JSON.stringify(path), '{}']];
  return tree.flatMap(([key, value]) => pathsAndLeaves(value, [...path, key]));
}

function treeOf(value: Json): Tree {
  return isObject(value)
    ? Object.entries(value).map(([key, inner]) => [key, treeOf(inner)] as const)
    : JSON.stringify(value);
}
