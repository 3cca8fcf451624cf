import { create, type DescMessage, type MessageInitShape, type MessageShape } from '@bufbuild/protobuf';

type Fields<Desc extends DescMessage> = Omit<MessageShape<Desc>, '$typeName' | '$unknown'>;

/** All fields of a message, undefined for unset ones. A missing field does not compile. */
export type AllFields<Desc extends DescMessage> = {
  readonly [Name in keyof Required<Fields<Desc>>]: Fields<Desc>[Name] | undefined;
};

export function messageOf<Desc extends DescMessage>(schema: Desc, fields: AllFields<Desc>): MessageShape<Desc> {
  return create(schema, fields as unknown as MessageInitShape<Desc>);
}
