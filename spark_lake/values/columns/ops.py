"""Ops and columns of the tables that Avro and Protobuf schemas are compiled to.

This module is apart from the compiled loops because they load numba.
"""

# Fields of an op.
OP = 0
COLUMN = 1
ARGUMENT = 2
END = 3

INT = 0
LONG = 1
BOOL = 2
FLOAT = 3
DOUBLE = 4
BYTES = 5  # a length, then as many bytes; also text
FIXED = 6  # ARGUMENT bytes
ENUM = 7  # below ARGUMENT
STRUCT = 8  # its members follow
UNION = 9  # ARGUMENT is the null branch, the other one follows; no column
LIST = 10  # its items follow
LIST_END = 11  # ARGUMENT is the op of the list

DEPTH_MAX = 32

# Columns of the Protobuf loop's `fields`.
NUMBER = 0
WIRE = 1
FIELD_OP = 2
CHILD = 3  # the message of a message field
KIND = 4
ONEOF = 5  # -1: none
FIELD_SIZE = 6

# Wire formats of Protobuf fields.
INT64 = 0
INT32 = 1  # also enums
UINT32 = 2
SINT32 = 3
SINT64 = 4
BOOLEAN = 5
FIXED32 = 6  # also the bits of floats
SFIXED32 = 7
FIXED64 = 8  # also the bits of doubles
TEXT = 9  # also bytes
MESSAGE = 10
TIMESTAMP = 11

# Kinds of Protobuf fields.
PLAIN = 0  # the default if it is absent
OPTIONAL = 1  # null if it is absent
REPEATED = 2
MAP = 3
NEEDED = 4  # left to Protobuf's parser if it is absent
