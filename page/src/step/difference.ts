import { createPatch } from 'rfc6902';
import { type Change, changesOf } from './patch.ts';

/** Returns the changes between two texts of JSON; undefined if one is no JSON. */
export function differenceOf(before: string, after: string): Change[] | undefined {
  const [one, other] = [parsed(before), parsed(after)];
  return one === undefined || other === undefined
    ? undefined
    : changesOf(one.value, createPatch(one.value, other.value));
}

function parsed(text: string): { readonly value: unknown } | undefined {
  try {
    return { value: JSON.parse(text) };
  } catch {
    return undefined;
  }
}
