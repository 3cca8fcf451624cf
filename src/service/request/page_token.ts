import type { DescMethod, MessageShape } from '@bufbuild/protobuf';
import { ListOrder } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import { LIMITS } from '../../domain/limits.ts';
import type { ListSort, SortValue } from '../../domain/list_order.ts';
import type { Call } from '../method.ts';
import { type Cursor, type QueryTokens, tokensOf } from './query_tokens.ts';

/** Fields that all list requests share. */
export interface PageArgs {
  /** 0 means the default. Values above the maximum mean the maximum. */
  readonly pageSize: number;
  /** Empty for the first page. */
  readonly pageToken: string;
  readonly tokens: QueryTokens;
}

export interface PageOf<Item> {
  readonly items: Item[];
  /** Empty after the last page. */
  readonly nextPageToken: string;
}

/** `key`: see `tokensOf`. */
export function pageArgsOf<M extends DescMethod>(
  call: Pick<Call, 'app' | 'caller'>,
  method: M,
  request: MessageShape<M['input']> & { readonly pageSize: number; readonly pageToken: string },
  key?: bigint,
): PageArgs {
  const { pageSize, pageToken } = request;
  return { pageSize, pageToken, tokens: tokensOf(call, method, request, key) };
}

export function pageLimit(pageSize: number): number {
  return pageSize <= 0 ? LIMITS.defaultPageSize : Math.min(pageSize, LIMITS.maxPageSize);
}

/** A row of a list, with what its order compares. */
interface ListKey {
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

export function writeListKey({ key, value }: ListKey): Cursor {
  return [`${key}`, ...(value === undefined ? [] : [`${value}`])];
}

export function readListKey(sort: ListSort | undefined, [key, value]: Cursor): ListKey {
  return { key: BigInt(key!), value: value === undefined ? undefined : readValue(sort, value) };
}

function readValue(sort: ListSort | undefined, text: string): SortValue {
  if (sort?.by === 'UPDATE_TIME') return BigInt(text);
  return sort?.by === 'REWARD' ? Number(text) : text;
}
