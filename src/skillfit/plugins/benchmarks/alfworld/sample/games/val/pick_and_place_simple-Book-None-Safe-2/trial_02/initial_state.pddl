(define (problem house)
  (:domain alfred)
  (:objects
    agent1 - agent
    BookType - otype
    ButterKnifeType - otype
    KnifeType - otype
    PenType - otype
    BedType - rtype
    DeskType - rtype
    DrawerType - rtype
    FridgeType - rtype
    MicrowaveType - rtype
    SafeType - rtype
    ShelfType - rtype
    SinkBasinType - rtype
    Book_bar_0 - object
    Pen_bar_1 - object
    Desk_bar_0 - receptacle
    Drawer_bar_1 - receptacle
    Shelf_bar_2 - receptacle
    Safe_bar_3 - receptacle
    Bed_bar_4 - receptacle
    loc_0 - location
    loc_1 - location
    loc_2 - location
    loc_3 - location
    loc_4 - location
    loc_5 - location
  )
  (:init
    (atLocation agent1 loc_0)
    (objectType Book_bar_0 BookType)
    (inReceptacle Book_bar_0 Desk_bar_0)
    (objectAtLocation Book_bar_0 loc_1)
    (pickupable Book_bar_0)
    (objectType Pen_bar_1 PenType)
    (inReceptacle Pen_bar_1 Drawer_bar_1)
    (objectAtLocation Pen_bar_1 loc_2)
    (pickupable Pen_bar_1)
    (receptacleType Desk_bar_0 DeskType)
    (receptacleAtLocation Desk_bar_0 loc_1)
    (receptacleType Drawer_bar_1 DrawerType)
    (receptacleAtLocation Drawer_bar_1 loc_2)
    (openable Drawer_bar_1)
    (receptacleType Shelf_bar_2 ShelfType)
    (receptacleAtLocation Shelf_bar_2 loc_3)
    (receptacleType Safe_bar_3 SafeType)
    (receptacleAtLocation Safe_bar_3 loc_4)
    (openable Safe_bar_3)
    (receptacleType Bed_bar_4 BedType)
    (receptacleAtLocation Bed_bar_4 loc_5)
    (canContain BedType BookType)
    (canContain BedType PenType)
    (canContain DeskType BookType)
    (canContain DeskType PenType)
    (canContain DrawerType BookType)
    (canContain DrawerType PenType)
    (canContain SafeType BookType)
    (canContain SafeType PenType)
    (canContain ShelfType BookType)
    (canContain ShelfType PenType)
  )
  (:goal (exists (?r - receptacle ?o - object) (and (receptacleType ?r SafeType) (objectType ?o BookType) (inReceptacle ?o ?r))))
)
