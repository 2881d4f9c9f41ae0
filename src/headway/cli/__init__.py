"""The headway command. Each command is a module that is imported when it is used."""
