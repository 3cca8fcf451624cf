import { ListOrder } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import type { ListSort, SortValue } from '../../domain/list_order.ts';
import { cursorInt, invalidPageToken } from './page_token.ts';

/** A row of a list, with what its order compares. */
export interface ListKey {
  readonly key: bigint;
  readonly value: SortValue;
}

const ORDERS: Readonly<Record<ListOrder, ListSort['by']>> = {
  [ListOrder.UNSPECIFIED]: 'CREATION',
  [ListOrder.CREATE_TIME]: 'CREATION',
  [ListOrder.UPDATE_TIME]: 'UPDATE_TIME',
  [ListOrder.NAME]: 'NAME',
  [ListOrder.REWARD]: 'REWARD',
};

/** Returns the requested order. Undefined for the default, which engines read by other statements. */
export function toListSort(request: { readonly order: ListOrder; readonly ascending: boolean }): ListSort | undefined {
  const { ascending } = request;
  const by = ORDERS[request.order];
  return by === 'CREATION' && !ascending ? undefined : { by, ascending };
}

export function writeListKey({ key, value }: ListKey): string[] {
  return [`${key}`, ...(value === undefined ? [] : [`${value}`])];
}

/** Errors: INVALID_PAGE_TOKEN. */
export function readListKey(sort: ListSort | undefined, cursor: readonly string[]): ListKey {
  return { key: cursorInt(cursor, 0), value: readValue(sort?.by, cursor) };
}

/** Nanoseconds up to the year 6646, which every database can read. */
const TIME_BITS = 68;

function readValue(by: ListSort['by'] | undefined, cursor: readonly string[]): SortValue {
  const text = cursor[1];
  if (by === 'REWARD') {
    if (text === undefined) return undefined;
    const value = text === '' ? Number.NaN : Number(text);
    if (Number.isNaN(value)) throw invalidPageToken();
    return value;
  }
  if (by === 'UPDATE_TIME') {
    const time = cursorInt(cursor, 1, TIME_BITS);
    if (time < 0n) throw invalidPageToken();
    return time;
  }
  if (by === 'NAME' && text === undefined) throw invalidPageToken();
  return by === 'NAME' ? text : undefined;
}
