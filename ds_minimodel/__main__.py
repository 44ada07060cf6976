from ds_minimodel.cli.main import main

if __name__ == "__main__":
    main()
