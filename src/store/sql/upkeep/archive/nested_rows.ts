import type { ArchiveRecord } from '../../../../domain/archive.ts';
import type { RowOf } from '../../kit/tables/table.ts';
import { NOUNS, plainColumns } from './nouns.ts';
import { fromRecord, listOf } from './values.ts';

/** Returns rows for the resources in a record. `of` are the columns that they do not have. */
export function rowsIn<Name extends 'status_change' | 'tag'>(
  record: ArchiveRecord,
  field: string,
  name: Name,
  of: object,
): RowOf<(typeof NOUNS)[Name]['table']>[] {
  return listOf(record, field).map((part) => {
    const columns = plainColumns(NOUNS[name]).map((column) => {
      return [column.name, fromRecord(column, part[column.name], `"${field}" of a record`)];
    });
    return { ...Object.fromEntries(columns), ...of };
  }) as unknown as RowOf<(typeof NOUNS)[Name]['table']>[];
}
