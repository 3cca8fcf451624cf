import { type FileHandle, open } from 'node:fs/promises';
import type { Timestamp } from '@bufbuild/protobuf/wkt';
import { ByteWriter, ParquetWriter, type SchemaElement } from 'hyparquet-writer';
import type { Cell, ColumnHead, ColumnType, TableFile } from './column.ts';

/** A row group is written when it has one of these. It is in memory until then. */
const GROUP_ROWS = 16_384;
const GROUP_CHARACTERS = 8 * 1024 * 1024;

const TYPES: Readonly<Record<ColumnType, Pick<SchemaElement, 'type' | 'converted_type' | 'logical_type'>>> = {
  text: { type: 'BYTE_ARRAY', converted_type: 'UTF8' },
  json: { type: 'BYTE_ARRAY', converted_type: 'UTF8' },
  integer: { type: 'INT64' },
  number: { type: 'DOUBLE' },
  boolean: { type: 'BOOLEAN' },
  time: {
    type: 'INT64',
    converted_type: 'TIMESTAMP_MICROS',
    logical_type: { type: 'TIMESTAMP', isAdjustedToUTC: true, unit: 'MICROS' },
  },
};

/** Creates a Parquet file. Times have microseconds. */
export async function createParquet(path: string, columns: readonly ColumnHead[]): Promise<TableFile> {
  const file = await open(path, 'wx');
  const schema: SchemaElement[] = [
    { name: 'root', num_children: columns.length },
    ...columns.map(({ name, type }) => ({ name, repetition_type: 'OPTIONAL' as const, ...TYPES[type] })),
  ];
  const parquet = new ParquetWriter({ writer: new GroupWriter(file), schema, createdBy: 'anabranch' });
  let [group, rows, characters] = [columns.map((): unknown[] => []), 0, 0];
  const flush = async () => {
    const columnData = columns.map(({ name }, i) => ({ name, data: group[i] ?? [], offsetIndex: false }));
    [group, rows, characters] = [columns.map(() => []), 0, 0];
    await parquet.write({ columnData, rowGroupSize: GROUP_ROWS });
  };
  return {
    async write(row) {
      for (const [i, cell] of row.entries()) {
        group[i]?.push(cellParquet(cell));
        if (typeof cell === 'string') characters += cell.length;
      }
      rows += 1;
      if (rows >= GROUP_ROWS || characters >= GROUP_CHARACTERS) await flush();
    },
    async finish() {
      if (rows > 0) await flush();
      await parquet.finish();
    },
    close: () => file.close(),
  };
}

function cellParquet(cell: Cell): string | bigint | number | boolean | null {
  if (typeof cell !== 'object' || cell === null) return cell;
  const { seconds, nanos } = cell as Timestamp;
  return seconds * 1_000_000n + BigInt(Math.floor(nanos / 1000));
}

/** Writes to a file after each row group, so that memory holds one. */
class GroupWriter extends ByteWriter {
  readonly #file: FileHandle;

  constructor(file: FileHandle) {
    super();
    this.#file = file;
  }

  async flush(): Promise<void> {
    const bytes = this.getBytes();
    this.index = 0;
    // Nothing is appended before this ends, so the bytes stay as they are.
    for (let at = 0; at < bytes.length; ) at += (await this.#file.write(bytes, at)).bytesWritten;
  }

  override finish(): Promise<void> {
    return this.flush();
  }
}
